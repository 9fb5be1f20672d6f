"use strict";
/* The page of all jobs: who runs, who waits for what, and what GPUs do. */

const POLL_MS = 5000;
const ROLES = [["rollout", "sample", "one"], ["trainer", "train", "two"], ["judge", "judge", "four"], ["waiting", "waited for", "five"]];
const MOODS = { Running: " good", Succeeded: " good", Failed: " bad" };

class FleetPage {
  constructor() {
    this.changes = new Changes();
    this.connection = el("span", { class: "badge", role: "status" });
    this.head = el("div", { class: "tiles" });
    this.chart = new Chart("GPUs by role since this page was opened", { zero: true, time: true, x: "time" });
    this.rows = el("div", { class: "card" });
    this.footer = el("footer", {});
    document.title = "Jobs · Longshore";
    document.getElementById("page").replaceChildren(
      el("header", {}, el("div", { class: "headline" }, el("h1", {}, "Jobs"), this.connection)),
      el("main", {}, this.head, wide(this.chart.node), el("h2", {}, "Jobs"), this.rows), this.footer);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.chart.rebuild());
  }

  async run() {
    await this.refresh();
    document.documentElement.setAttribute("data-ready", "true");
    repeatedly(() => this.refresh(), POLL_MS);
  }

  async refresh() {
    try {
      this.show(await (await ask("api/fleet")).json());
      this.connection.className = "badge good";
      this.connection.textContent = "live";
    } catch (error) {
      this.connection.className = "badge bad";
      this.connection.textContent = "no connection";
      this.footer.textContent = "The last answer could not be had: " + error.message;
    }
  }

  show(fleet) {
    this.footer.textContent = "Longshore · " + (fleet.namespace === null ? "all namespaces" : "namespace " + fleet.namespace)
      + " · as of " + new Date(fleet.written_s * 1000).toLocaleString("en-GB");
    this.chart.show(fleet.history.map((moment) => moment.time_s),
      ROLES.map(([role, label, colour]) => ({ label, colour, points: false, values: fleet.history.map((moment) => moment.gpus[role] || 0) })));
    if (!this.changes.since("jobs", fleet.jobs)) return;
    this.tiles(fleet.jobs);
    this.table(fleet.jobs);
  }

  tiles(jobs) {
    const phases = {};
    for (const job of jobs) phases[job.phase] = (phases[job.phase] || 0) + 1;
    this.head.replaceChildren(...Object.entries(phases).sort().map(([phase, count]) =>
      el("div", { class: "tile" }, el("b", {}, figure(count)), el("span", {}, phase))));
  }

  table(jobs) {
    if (!jobs.length) {
      this.rows.replaceChildren(el("p", { class: "empty" }, "There is no job."));
      return;
    }
    const word = (name) => ({ name, class: "word" }), number = (name) => ({ name, class: "number" });
    this.rows.replaceChildren(table("Unfinished jobs first, those that need attention before others",
      [word("Job"), word("Phase"), number("Step"), number("Reward"), number("Bubble"), word("GPUs")],
      jobs.map((job) => [
        el("span", {}, el("a", { href: "jobs/" + job.namespace + "/" + job.name + "/" }, el("b", {}, job.name)), el("br", {}), el("small", { class: "dim" }, job.namespace + " · " + words(job.strategy)), this.why(job)),
        el("span", { class: "badge" + (MOODS[job.phase] || " warn") }, job.phase),
        figure(Math.min(job.step, job.steps)) + " of " + figure(job.steps) + (job.step > job.steps ? " + " + figure(job.step - job.steps) : ""), figure(job.reward), percent(job.bubble_share), this.gpus(job),
      ]), "stacked"));
  }

  /* What a job waits for, why it failed, and its alarms: beside its name, where a phone shows it, too. */
  why(job) {
    const reasons = [job.waits_for, job.failure, job.queue && !job.is_finished ? "queue " + job.queue : "", ...job.alarms].filter(Boolean);
    return reasons.length ? el("span", { class: "why" }, reasons.join(" · ")) : null;
  }

  gpus(job) {
    const held = ROLES.filter(([role]) => job.gpus[role]).map(([role]) => job.gpus[role] + " " + role).join(", ");
    if (held || job.is_finished) return held || "–";
    return job.demand ? "0 of " + figure(job.demand) : "–";
  }
}

new FleetPage().run();
