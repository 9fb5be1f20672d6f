"use strict";
/* Prompts and what the model answered: a list of groups, and the responses of the one that is chosen. */

const ORDERS = {
  "as sampled": () => 0,
  "lowest reward first": (one, other) => mean(one.scores) - mean(other.scores),
  "highest reward first": (one, other) => mean(other.scores) - mean(one.scores),
  "longest first": (one, other) => Math.max(...other.tokens) - Math.max(...one.tokens),
};

function mean(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : 0;
}

const KINDS = { samples: "training", "held-out": "held-out prompts" };

class Samples {
  constructor(source, fail) {
    this.source = source;
    this.fail = fail;
    this.steps = {};
    this.kind = "samples";
    this.step = null;
    this.kindSelect = el("select", { "aria-label": "Samples of", change: () => this.chooseKind(this.kindSelect.value) });
    this.stepSelect = el("select", { "aria-label": "Step", change: () => this.choose(Number(this.stepSelect.value)) });
    this.orderSelect = el("select", { "aria-label": "Order of the prompts", change: () => this.list() },
      Object.keys(ORDERS).map((order) => el("option", { value: order }, order)));
    this.groupList = el("ol", { class: "groups" });
    this.group = el("div", { class: "card", "aria-live": "polite" });
    this.node = el("div", {},
      el("div", { class: "bar" }, this.kindSelect, "Step", this.stepSelect, this.orderSelect),
      el("div", { class: "samples" }, this.groupList, this.group));
    this.empty = el("p", { class: "empty" }, "No response has been kept yet.");
  }

  /* Steps with samples, by kind. */
  show(steps) {
    const kinds = Object.keys(KINDS).filter((kind) => steps[kind].length);
    this.node.hidden = !kinds.length;
    this.empty.hidden = Boolean(kinds.length);
    if (JSON.stringify(steps) === JSON.stringify(this.steps)) return;
    this.steps = steps;
    this.kindSelect.replaceChildren(...kinds.map((kind) => el("option", { value: kind }, KINDS[kind])));
    if (kinds.length) this.chooseKind(kinds.includes(this.kind) ? this.kind : kinds[0]);
  }

  /* The newest step, unless the one that is shown has samples of this kind. */
  chooseKind(kind) {
    const steps = this.steps[kind], isSame = kind === this.kind && steps.includes(this.step);
    this.kind = this.kindSelect.value = kind;
    this.stepSelect.replaceChildren(...steps.slice().reverse().map((step) => el("option", { value: step }, String(step))));
    if (isSame) this.stepSelect.value = String(this.step);
    else this.choose(steps.includes(this.step) ? this.step : steps[steps.length - 1]);
  }

  async choose(step) {
    const kind = this.kind;
    this.step = step;
    this.stepSelect.value = String(step);
    try {
      const heads = await this.source.heads(kind, step);
      if (step !== this.step || kind !== this.kind) return;
      this.heads = heads;
    } catch (error) {
      if (step !== this.step || kind !== this.kind) return;
      this.heads = [];
      this.fail(error);
    }
    this.draw = null;
    this.list();
  }

  list() {
    const heads = (this.heads || []).slice().sort(ORDERS[this.orderSelect.value]);
    this.groupList.replaceChildren(...heads.map((head) => el("li", {}, this.entry(head))));
    if (!heads.length) this.group.replaceChildren(el("p", { class: "empty" }, "No response of this step is there."));
    else if (this.draw === null) this.open(heads[0].draw);
    else this.mark();
  }

  entry(head) {
    return el("button", { type: "button", "data-draw": head.draw, click: () => this.open(head.draw) },
      el("span", { class: "excerpt", dir: "auto" }, head.excerpt || head.prompt || "(empty prompt)"),
      el("small", {}, "reward " + figure(mean(head.scores)) + " · up to " + figure(Math.max(...head.tokens)) + " tokens · "
        + words(head.outcome).toLowerCase() + (head.domain ? " · " + head.domain : "")));
  }

  mark() {
    for (const button of this.groupList.querySelectorAll("button")) {
      button.setAttribute("aria-current", String(button.getAttribute("data-draw") === this.draw));
    }
  }

  async open(draw) {
    const step = this.step, kind = this.kind;
    this.draw = draw;
    this.mark();
    try {
      const group = await this.source.group(kind, step, draw);
      if (draw !== this.draw || step !== this.step || kind !== this.kind) return;
      this.group.replaceChildren(
        el("h3", {}, "Prompt " + group.prompt_index + ", draw " + group.draw),
        el("pre", { class: "text", dir: "auto", tabindex: "0" }, group.prompt),
        ...(group.answer ? [el("h3", {}, "Expected answer"), el("pre", { class: "text", dir: "auto", tabindex: "0" }, group.answer)] : []),
        el("h3", {}, group.responses.length + " responses"),
        ...group.responses.map((response, place) => this.response(response, place === 0)));
    } catch (error) {
      this.fail(error);
    }
  }

  conversations(turns) {
    const hasSeveral = turns.at(-1).branch > 0;
    return turns.flatMap((turn, place) => [
      ...(hasSeveral && (place === 0 || turn.branch !== turns[place - 1].branch) ? [el("h3", {}, "Conversation " + (turn.branch + 1))] : []),
      ...this.turn(turn)]);
  }

  turn(turn) {
    return [el("h4", {}, SPEAKERS[turn.role] || turn.role),
      el("pre", { class: "text", dir: "auto", tabindex: "0" }, [turn.text, turn.calls].filter(Boolean).join("\n") || "(nothing)")];
  }

  response(response, isOpen) {
    const versions = response.versions.map(([version, tokens]) => (version === null ? "environment" : "version " + version) + ": " + figure(tokens)).join(", ");
    const parts = Object.entries(response.rewards).map(([name, reward]) => name + " " + figure(reward)).join(", ");
    return el("details", { class: "response", open: isOpen },
      el("summary", {},
        el("b", {}, "Response " + response.index),
        el("span", {}, "reward " + figure(response.reward)),
        response.advantage === null ? null : el("span", {}, "advantage " + figure(response.advantage)),
        el("span", {}, figure(response.tokens) + " tokens"),
        el("span", {}, REASONS[response.finish_reason] || response.finish_reason)),
      dl([
        parts && ["Rewards", parts],
        response.penalty && ["Penalty", figure(response.penalty)],
        versions && ["Tokens by weights", versions],
        ["Sampled by", "engine " + response.engines.join(", then ") + ", in " + seconds(response.engine_s)],
        response.environment_s !== null && ["Environment", "took " + seconds(response.environment_s)],
        response.state && ["Final state", response.state],
        response.timed_out && ["Scoring", "was cut off by its time limit"],
      ]),
      ...(response.turns.length ? this.conversations(response.turns)
        : [el("pre", { class: "text", dir: "auto", tabindex: "0" }, response.text || "(empty response)")]),
      response.left_out_characters ? el("p", { class: "dim" }, figure(response.left_out_characters) + " more characters") : null);
  }
}

const SPEAKERS = { system: "System", assistant: "Model", tool: "Tool", user: "Environment" };
const REASONS = { stop: "ended by itself", length: "cut at the length limit", abort: "aborted" };
