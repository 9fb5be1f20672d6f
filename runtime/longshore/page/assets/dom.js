"use strict";
/* Elements and numbers. Texts reach the document as text nodes only: they were written by models and users. */

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

function swatch(name, isLine) {
  const node = el("span", { class: isLine ? "swatch line" : "swatch", "aria-hidden": "true" });
  node.style.background = "var(--" + name + ")";
  return node;
}

function figure(value, digits) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (digits !== undefined) return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(1);
  return value.toLocaleString("en", { maximumFractionDigits: size >= 100 ? 0 : size >= 1 ? 2 : 4 });
}

function percent(share) {
  return share === null || share === undefined ? "–" : Math.round(share * 100) + "%";
}

function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 120) return figure(value, value < 10 ? 1 : 0) + " s";
  const minutes = Math.round(value / 60);
  return minutes < 120 ? minutes + " min" : Math.floor(minutes / 60) + " h " + (minutes % 60) + " min";
}

function bytes(value) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let size = value, unit = 0;
  while (size >= 1000 && unit < units.length - 1) { size /= 1000; unit += 1; }
  return figure(size, unit ? 1 : 0) + " " + units[unit];
}

/* Deferred draws take steps of their own at the end: these are counted apart, as the command line does. */
function stepsText(done, wanted) {
  return "Step " + figure(Math.min(done, wanted)) + " of " + figure(wanted) + (done > wanted ? " + " + figure(done - wanted) + " for deferred prompts" : "");
}

function clock(text) {
  const at = new Date(text);
  return isNaN(at) ? String(text) : at.toLocaleString("en-GB");
}

/* "zero_variance" and "WaitForWorkers" as words. */
function words(name) {
  const spaced = String(name).replace(/_/g, " ").replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase();
  return spaced.charAt(0).toUpperCase() + spaced.slice(1);
}

function table(caption, columns, rows, kind) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", { class: kind },
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, columns.map((column) => el("th", { scope: "col", class: column.class }, column.name)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, place) => el("td", { class: columns[place].class, "data-name": columns[place].name }, cell)))))));
}

function card(title, ...children) {
  return el("section", { class: "card" }, title ? el("h3", {}, title) : null, children);
}

function wide(node) {
  node.classList.add("wide");
  return node;
}

function dl(facts) {
  return el("dl", { class: "facts" }, facts.filter(Boolean).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

/* Calls `work` for as long as the page is open, while somebody looks. Whatever goes wrong once, the next call comes. */
function repeatedly(work, everyMs) {
  const next = async () => {
    try {
      if (!document.hidden) await work();
    } finally {
      setTimeout(next, everyMs);
    }
  };
  setTimeout(next, everyMs);
}

/* JSON of the server; one that hangs, as a port-forward may whose pod is gone, counts as failed after a while. */
const ANSWER_LIMIT_MS = 60000;

async function ask(path, headers) {
  const answer = await fetch(path, { headers: headers || {}, signal: AbortSignal.timeout(ANSWER_LIMIT_MS) });
  if (!answer.ok && answer.status !== 304) throw new Error((await answer.text()).slice(0, 500) || answer.statusText);
  return answer;
}

/* Does something only if what it shows has changed: whoever reads or listens is not disturbed every few seconds. */
class Changes {
  constructor() { this.seen = {}; }

  since(name, value) {
    const text = JSON.stringify(value);
    if (this.seen[name] === text) return false;
    this.seen[name] = text;
    return true;
  }
}
