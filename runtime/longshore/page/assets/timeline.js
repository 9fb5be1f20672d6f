"use strict";
/* The timeline of a round: a lane for each GPU with what it does, and below it the responses on its engine. */

const BAND_PX = 16, LABEL_PX = 17, GAP_PX = 9, AXIS_PX = 24, PHASE_PX = 20, MAX_ROWS_PX = 130, MARGIN_PX = 2;
const STATES = ["sampling", "training", "publishing", "regrouping", "repurposing", "asleep", "idle", "lost"];
const STAYS = [
  ["accepted", "trained on"], ["zero_variance", "all rewards of its group equal"], ["deferred", "waits for a later round"],
  ["aborted", "aborted or not used"], ["moved", "moves to another engine here"], ["lost", "lost with its engine, or its reward failed"],
];

function stayColour(stay) {
  if (stay.outcome === "accepted" || stay.outcome === "zero_variance") return stay.outcome;
  if (stay.outcome === "rejected" || stay.end === "lost") return "lost";
  if (stay.outcome === "deferred" || stay.outcome === "kept") return "deferred";
  return "aborted";
}

class Timeline {
  /* `textOf` gives the text of a response of a step, or null where none is kept. */
  constructor(textOf) {
    this.textOf = textOf;
    this.canvas = el("canvas", { class: "timeline", role: "img" });
    this.hint = el("span", {});
    this.quote = el("q", { dir: "auto" });
    this.details = el("div", {});
    this.node = el("div", {}, this.canvas, el("p", { class: "hint", "aria-live": "polite" }, this.hint, this.quote), this.legend(), this.details);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerdown", (event) => this.point(event));
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  legend() {
    return [
      el("ul", { class: "legend", "aria-label": "What GPUs do" },
        STATES.map((state) => el("li", {}, swatch(state), words(state)))),
      el("ul", { class: "legend", "aria-label": "What became of responses" },
        STAYS.map(([name, meaning]) => el("li", {}, swatch(name, true), words(meaning)))),
    ];
  }

  show(round, digest) {
    this.round = round;
    this.tell("Point at a lane or a response to see what it is.", null);
    const numShown = round.lanes.reduce((sum, lane) => sum + lane.stays.length, 0);
    this.canvas.setAttribute("aria-label", "Timeline of round " + round.step + ", " + seconds(round.duration_s) + ", "
      + round.lanes.length + " lanes; the table below has its figures");
    const total = Object.values(round.seconds).reduce((sum, value) => sum + value, 0) || 1;
    const states = STATES.filter((state) => round.seconds[state]);
    this.details.replaceChildren(...[
      numShown < round.num_stays
        ? el("p", { class: "dim" }, "Of " + figure(round.num_stays) + " stays on engines, the " + figure(numShown) + " longest are drawn.")
        : null,
      digest ? el("p", {}, this.sentence(round, digest)) : null,
      table("Time of all lanes", states.map((state) => ({ name: words(state), class: "number" })),
        [states.map((state) => percent(round.seconds[state] / total))]),
    ].filter(Boolean));
    this.draw();
  }

  sentence(round, digest) {
    const outcomes = Object.entries(digest.outcomes).map(([name, count]) => figure(count) + " " + words(name).toLowerCase());
    return words(round.kind) + " round, " + seconds(round.duration_s) + ", bubble " + percent(round.bubble_share) + ". "
      + figure(digest.num_responses) + " responses started: " + outcomes.join(", ") + ". " + figure(digest.num_aborted)
      + " stopped early, " + figure(digest.num_moved) + " moved to another engine. "
      + figure(digest.queue_length) + " draws in the long-prompt queue.";
  }

  draw() {
    const width = this.node.clientWidth;
    if (!this.round || !width) return;
    const lanes = this.round.lanes;
    const rows = lanes.map((lane) => Math.min(MAX_ROWS_PX, lane.num_rows * 4));
    const height = PHASE_PX + lanes.reduce((sum, _, place) => sum + LABEL_PX + BAND_PX + rows[place] + GAP_PX, 0) + AXIS_PX;
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.canvas.style.height = height + "px";
    const paint = this.canvas.getContext("2d");
    paint.scale(scale, scale);
    paint.clearRect(0, 0, width, height);
    paint.font = "12px system-ui, sans-serif";
    paint.textBaseline = "middle";
    this.px = (at) => MARGIN_PX + (at / Math.max(this.round.duration_s, 1e-9)) * (width - 2 * MARGIN_PX);
    this.boxes = [];
    this.phases(paint, height);
    let top = PHASE_PX;
    lanes.forEach((lane, place) => {
      paint.fillStyle = colour("text");
      paint.fillText(lane.label, MARGIN_PX, top + LABEL_PX / 2);
      top += LABEL_PX;
      this.band(paint, lane, top);
      top += BAND_PX;
      this.stays(paint, lane, top, rows[place]);
      top += rows[place] + GAP_PX;
    });
    this.axis(paint, width, top);
  }

  phases(paint, height) {
    for (const phase of this.round.phases) {
      const left = this.px(phase.start_s), wide = this.px(phase.end_s) - left;
      paint.strokeStyle = colour("line");
      paint.beginPath();
      paint.moveTo(left + 0.5, 0);
      paint.lineTo(left + 0.5, height - AXIS_PX);
      paint.stroke();
      if (paint.measureText(phase.state).width + 8 < wide) {
        paint.fillStyle = colour("dim");
        paint.fillText(phase.state, left + 4, PHASE_PX / 2);
      }
      this.boxes.push([left, 0, wide, PHASE_PX, words(phase.state) + ", " + this.span(phase)]);
    }
  }

  band(paint, lane, top) {
    for (const interval of lane.intervals) {
      const left = this.px(interval.start_s), wide = Math.max(this.px(interval.end_s) - left, 0.5);
      paint.fillStyle = colour(interval.state);
      paint.fillRect(left, top, wide, BAND_PX);
      this.boxes.push([left, top, wide, BAND_PX, lane.label + ": " + words(interval.state).toLowerCase() + ", " + this.span(interval)]);
    }
  }

  stays(paint, lane, top, height) {
    if (!lane.num_rows) return;
    const step = height / lane.num_rows, thick = Math.max(step * 0.72, 0.7);
    const colours = Object.fromEntries(["accepted", "zero_variance", "deferred", "aborted", "moved", "lost"].map((name) => [name, colour(name)]));
    for (const stay of lane.stays) {
      const left = this.px(stay.start_s), wide = Math.max(this.px(stay.end_s) - left, 1), at = top + 2 + stay.row * step;
      paint.fillStyle = colours[stayColour(stay)];
      paint.fillRect(left, at, wide, thick);
      const answered = stay.environment_s ? this.px(stay.end_s + stay.environment_s) - left - wide : 0;
      if (answered > 0) {
        paint.globalAlpha = 0.3;
        paint.fillRect(left + wide, at, answered, thick);
        paint.globalAlpha = 1;
      }
      if (stay.end === "moved") {
        paint.fillStyle = colours.moved;
        paint.fillRect(left + wide - 3, at - 0.5, 3, thick + 1);
      }
      this.boxes.push([left, at, wide + answered, step, "Response " + stay.response + " on " + lane.label + ", " + this.span(stay)
        + ", " + figure(stay.tokens) + " tokens, " + stay.end + ", " + words(stay.outcome).toLowerCase()
        + (stay.reward === null || stay.reward === undefined ? "" : ", reward " + figure(stay.reward))
        + (stay.environment_s ? ", its environment answered after " + seconds(stay.environment_s) : "")
        + (stay.environment_share ? "; " + percent(stay.environment_share) + " of its time it waited for its environment" : ""), stay]);
    }
  }

  axis(paint, width, top) {
    const duration = this.round.duration_s;
    const rough = duration / Math.max(2, Math.floor(width / 110));
    const power = Math.pow(10, Math.floor(Math.log10(rough || 1)));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough) || 1;
    paint.fillStyle = colour("dim");
    for (let at = 0; at <= duration; at += step) {
      const text = figure(at) + " s", x = this.px(at);
      paint.fillRect(x, top - 4, 1, 5);
      paint.fillText(text, Math.min(x, width - paint.measureText(text).width - 2), top + 11);
    }
  }

  span(part) {
    return seconds(part.end_s - part.start_s) + " (" + figure(part.start_s, 2) + " to " + figure(part.end_s, 2) + " s)";
  }

  point(event) {
    const area = this.canvas.getBoundingClientRect(), x = event.clientX - area.left, y = event.clientY - area.top;
    const slack = event.pointerType === "touch" ? 5 : 1;
    let best = null;
    for (const [left, top, wide, high, text, stay] of this.boxes || []) {
      const away = Math.max(left - x, x - left - wide, 0) + Math.max(top - y, y - top - high, 0);
      if (away <= slack && (!best || away <= best[0])) best = [away, text, stay];
    }
    if (best) this.tell(best[1], best[2] || null);
  }

  /* Only responses that were trained on, or left out by dynamic sampling, are kept as text. */
  async tell(text, stay) {
    if (this.told === text) return;
    this.told = this.hint.textContent = text;
    this.quote.textContent = "";
    if (!stay || !["accepted", "zero_variance"].includes(stay.outcome)) return;
    const response = await this.textOf(this.round.step, stay.response).catch(() => null);
    if (response !== null && this.told === text) this.quote.textContent = response;
  }
}
