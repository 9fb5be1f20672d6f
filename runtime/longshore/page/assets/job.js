"use strict";
/* The page of a job: asks for what it shows, or finds it inlined, and shows it again whenever it changes. */

const POLL_MS = 3000;
const FORMAT = 1;

class Page {
  constructor(source) {
    this.source = source;
    this.view = null;
    this.cluster = null;
    this.changes = new Changes();
    this.connection = el("span", { class: "badge", role: "status" });
    this.head = el("header", {});
    this.trouble = el("div", { class: "trouble", role: "alert" });
    this.notes = el("div", { role: "status", "aria-label": "What needs attention" });
    this.build();
    document.getElementById("page").replaceChildren(this.nav(), this.trouble, this.head, this.main, this.footer);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
  }

  build() {
    this.charts = {
      reward: new Chart("Reward"), heldOut: new Chart("Held-out reward"), entropy: new Chart("Entropy"),
      gradient: new Chart("Gradient norm", { zero: true }), groups: new Chart("Groups that teach nothing", { zero: true }),
      lengths: new Chart("Response lengths by step, tokens", { zero: true }),
      distribution: new Chart("Lengths by round, tokens: trained on", { zero: true, bands: [[4, 2, "one"]] }),
      others: new Chart("Lengths by round, tokens: not trained on", { zero: true, bands: [[4, 2, "two"]] }),
      cut: new Chart("Share of responses cut or aborted", { zero: true }),
      time: new Chart("Time of a step, seconds", { zero: true }), bubble: new Chart("Share of bubble", { zero: true }),
      throughput: new Chart("Tokens per second and GPU", { zero: true }), queue: new Chart("Queue of long prompts", { zero: true }),
      moved: new Chart("Responses that moved, were aborted or deferred", { zero: true, x: "round" }),
      functions: new Chart("Reward by function"), domains: new Chart("Reward by domain"),
      latency: new Chart("Scoring time per response, seconds", { zero: true }), faults: new Chart("Scoring faults", { zero: true }),
      episodes: new Chart("Failed attempts at episodes, by cause", { zero: true }),
      waiting: new Chart("Waiting for rewards", { zero: true }),
      mismatch: new Chart("Log-probability mismatch", { zero: true }), offPolicy: new Chart("Share of off-policy tokens", { zero: true }),
      critic: new Chart("Critic: shares of variance explained and of values clipped"), any: new Chart("Any metric"),
    };
    this.empties = [];
    const cards = (...names) => {
      const empty = el("p", { class: "empty" });
      this.empties.push([empty, names.map((name) => this.charts[name].node)]);
      return [empty, el("div", { class: "cards" }, names.map((name) => this.charts[name].node))];
    };
    const groups = new Groups(this.source);
    this.timeline = new Timeline((step, response) => (this.view.sample_steps.includes(step) ? groups.text(step, response) : Promise.resolve(null)));
    this.samples = new Samples(this.source, (error) => this.missed(error));
    this.roundSelect = el("select", { "aria-label": "Round", change: () => this.chooseRound(Number(this.roundSelect.value)) });
    this.older = el("button", { type: "button", "aria-label": "Older round", click: () => this.step(-1) }, "‹");
    this.newer = el("button", { type: "button", "aria-label": "Newer round", click: () => this.step(1) }, "›");
    this.roundBox = el("div", { class: "card" },
      el("div", { class: "bar" }, "Round", this.older, this.roundSelect, this.newer), this.timeline.node);
    this.noRound = el("p", { class: "empty" }, "No round has been recorded yet.");
    this.means = el("p", { class: "dim" });
    this.events = el("div", {});
    this.metricSelect = el("select", { "aria-label": "Metric", change: () => this.showMetric() });
    this.config = el("pre", { class: "text", tabindex: "0" });
    const section = (id, title, ...children) => el("section", { id, "aria-labelledby": id + "-title" }, el("h2", { id: id + "-title" }, title), children);
    this.main = el("main", {}, this.notes, this.means,
      section("learning", "Learning", cards("reward", "heldOut", "entropy", "gradient", "critic", "groups")),
      section("lengths", "Lengths", cards("lengths", "distribution", "others", "cut")),
      section("timeline", "Timeline", this.noRound, this.roundBox),
      section("time", "Time", cards("time", "bubble", "throughput", "queue", "moved")),
      section("rewards", "Rewards", cards("functions", "domains", "latency", "waiting", "faults", "episodes")),
      section("policy", "Engines and trainers", cards("mismatch", "offPolicy")),
      section("samples", "Samples", this.samples.empty, this.samples.node),
      section("events", "Events and conditions", this.events),
      section("metrics", "All metrics", el("div", { class: "bar" }, this.metricSelect), cards("any")),
      section("configuration", "Configuration", this.config));
    this.footer = el("footer", {});
  }

  nav() {
    const links = { learning: "Learning", lengths: "Lengths", timeline: "Timeline", time: "Time", rewards: "Rewards",
      samples: "Samples", events: "Events", configuration: "Configuration" };
    // `longshore ui` without a job serves the pages of its jobs below its own.
    const all = location.protocol !== "file:" && location.pathname.startsWith("/jobs/") ? el("a", { href: "../../../" }, "‹ All jobs") : null;
    return el("nav", { "aria-label": "Parts of this page" }, all, Object.entries(links).map(([id, name]) => el("a", { href: "#" + id }, name)));
  }

  async run() {
    await this.refresh();
    document.documentElement.setAttribute("data-ready", "true");
    if (this.source.isLive) repeatedly(() => this.refresh(), POLL_MS);
  }

  /* The coordinator may be away while the API server is there. */
  async refresh() {
    const [view, cluster] = await Promise.allSettled([this.source.view(), this.source.cluster()]);
    if (cluster.status === "fulfilled") this.cluster = cluster.value;
    if (view.status === "fulfilled") {
      if (view.value) this.view = view.value;
      this.connected();
    } else this.failed(view.reason);
    this.show();
  }

  connected() {
    const at = this.view ? new Date(this.view.written_s * 1000).toLocaleString("en-GB") : "";
    this.connection.className = this.source.isLive ? "badge good" : "badge";
    this.connection.textContent = this.source.isLive ? "live" : "as of " + at;
    this.footer.textContent = "Longshore · " + (this.source.isLive ? "as of " + at : "a report of " + at);
    if (this.changes.since("trouble", "")) this.trouble.replaceChildren();
  }

  failed(error) {
    if (this.cluster && this.cluster.is_finished) {
      this.connection.className = "badge";
      this.connection.textContent = "ended";
      this.lost("note", "The job has ended, and its coordinator with it.", "Reload this page to see the report of the job.");
      return;
    }
    this.connection.className = "badge bad";
    this.connection.textContent = "no connection";
    this.lost("note bad", "The coordinator of the job cannot be reached.", error.message);
  }

  missed(error) { this.lost("note bad", "A part of this page could not be loaded.", error.message); }

  lost(kind, what, more) {
    const since = this.view ? " This page shows the job as of " + new Date(this.view.written_s * 1000).toLocaleString("en-GB") + "." : "";
    if (this.changes.since("trouble", [what, more, since])) this.trouble.replaceChildren(el("p", { class: kind }, el("b", {}, what), more + since));
  }

  show() {
    if (this.view && this.view.format !== FORMAT) {
      this.head.replaceChildren(el("div", { class: "note bad" }, "This page and the job are of different versions; open it with the version of the job."));
      return;
    }
    this.showHead();
    this.showNotes();
    this.showEvents();
    for (const part of this.main.querySelectorAll("section[id]")) part.hidden = !this.view && part.id !== "events";
    if (!this.view || this.shown === this.view) return;
    this.shown = this.view;
    document.title = this.view.job.name + " · Longshore";
    this.showCurves(this.view);
    this.showRounds(this.view.digests);
    this.samples.show({ samples: this.view.sample_steps, "held-out": this.view.held_out_steps || [] });
    this.showMetrics(this.view.curves);
    const isOver = this.cluster ? this.cluster.is_finished : !this.source.isLive;
    for (const [empty, charts] of this.empties) {
      empty.hidden = charts.some((chart) => !chart.hidden);
      empty.textContent = isOver ? "The job has no data about this." : "There is no data about this yet.";
    }
    this.config.textContent = yaml(this.view.job.spec, "");
  }

  recolour() {
    for (const chart of Object.values(this.charts)) chart.rebuild();
    this.timeline.draw();
  }

  showHead() {
    const runtime = (this.view && this.view.runtime) || {}, cluster = this.cluster, job = this.view && this.view.job;
    const phase = cluster ? cluster.phase : runtime.activity === "Done" ? "Succeeded" : runtime.activity ? "Running" : "Pending";
    const mood = { Succeeded: " good", Failed: " bad", Running: " good", Restarting: " warn", Queued: " warn", Pending: " warn" }[phase] || "";
    const steps = job ? job.steps : 0, step = runtime.step || 0;
    if (!this.changes.since("head", [runtime, cluster, job && job.name])) return;
    const isOver = cluster ? cluster.is_finished : runtime.activity === "Done";
    const headline = el("div", { class: "headline" }, el("h1", {}, job ? job.name : (cluster && cluster.name) || "Job"), job || cluster ? el("span", { class: "badge" + mood }, phase) : null,
      this.connection, job ? el("span", { class: "dim" }, words(job.strategy) + " · " + job.namespace) : null);
    if (!job) return this.head.replaceChildren(headline);
    this.head.replaceChildren(
      headline,
      el("p", { class: "num" }, stepsText(step, steps) + (isOver ? "" : doing(runtime)), " ", attempt(cluster, runtime)),
      el("progress", { max: Math.max(steps, 1), value: Math.min(step, steps), "aria-label": "Steps done" }),
      ...(isOver ? [] : progressOf(runtime)),
      el("div", { class: "tiles" }, this.tiles(runtime, cluster).map(([name, value]) => el("div", { class: "tile" }, el("b", {}, value), el("span", {}, name)))));
  }

  tiles(runtime, cluster) {
    const heldOut = runtime.heldOut || {}, lengths = runtime.responseTokens || {}, draws = runtime.draws || {}, warmStart = runtime.warmStart;
    const known = (value) => (runtime.step ? value : null);
    const gpus = cluster ? Object.entries(cluster.gpus).filter(([, count]) => count).map(([role, count]) => count + " " + role).join(", ") : "";
    return [
      ["reward of the last step", figure(runtime.reward, 3)],
      ...(warmStart ? [["warm start, loss at first → now", figure(warmStart.firstLoss, 2) + " → " + figure(warmStart.loss, 2)]] : []),
      ["held-out reward, before → now", figure(heldOut.before, 2) + " → " + figure(heldOut.latest, 2)],
      ["response tokens, mean · longest", figure(known(lengths.mean)) + " · " + figure(known(lengths.max))],
      ["tokens per second", figure(known(runtime.tokensPerSecond), 0)],
      ["share of bubble", percent(known(runtime.bubbleShare))],
      ["share of time, rollout · training", percent(known(timeShare(runtime, "Rollout"))) + " · " + percent(known(timeShare(runtime, "Train")))],
      ["prompts in the long queue", figure(draws.deferred)],
      ...(gpus ? [["GPUs by role", gpus]] : []),
      ["newest checkpoint", runtime.checkpointStep ? "step " + runtime.checkpointStep : "–"],
    ];
  }

  showNotes() {
    const alarms = ((this.view && this.view.runtime) || {}).alarms || [];
    const problems = this.cluster ? this.cluster.conditions.filter((one) => isProblem(one, this.cluster)) : [];
    if (!this.changes.since("notes", [alarms, problems])) return;
    this.notes.replaceChildren(
      ...alarms.map((alarm) => el("div", { class: "note" }, el("b", {}, alarm.reason), alarm.message + " (since step " + alarm.step + ")")),
      ...problems.filter((one) => one.type !== "TrainingAlarm" || !alarms.length)
        .map((one) => el("div", { class: one.type === "Failed" ? "note bad" : "note" }, el("b", {}, one.type + ": " + one.reason), one.message)));
  }

  showCurves(view) {
    const curves = view.curves, steps = curves.steps, charts = this.charts, metrics = (...pairs) => metricSeries(curves, pairs);
    this.means.hidden = curves.steps_per_point === 1;
    this.means.textContent = "A point of a curve stands for " + curves.steps_per_point + " steps: their mean, the extreme of what is lowest or highest, and the last evaluation.";
    charts.reward.show(steps, metrics(["mean", "critic/rewards/mean"], ["lowest", "critic/rewards/min", { width: 0.7 }], ["highest", "critic/rewards/max", { width: 0.7 }]));
    charts.heldOut.show(steps, metrics(["all prompts", "val/reward/mean", { points: true }], ["longest quarter", "val/reward/longest_quartile", { points: true }]));
    charts.entropy.show(steps, metrics(["entropy", "actor/entropy"]));
    charts.gradient.show(steps, metrics(["gradient norm", "actor/grad_norm"], ["critic", "critic/grad_norm"]));
    charts.critic.show(steps, metrics(["explained", "critic/vf_explained_var"], ["clipped", "critic/vf_clipfrac"]));
    charts.groups.show(steps, metrics(["all rewards equal", "draws/zero_variance"], ["reward failed", "draws/rejected"]));
    charts.lengths.show(steps, metrics(["mean", "response_length/mean"], ["third quartile", "response_length/p75"], ["longest", "response_length/max"]));
    charts.cut.show(steps, metrics(["cut at the limit", "response_length/clip_ratio"], ["aborted", "response/aborted_ratio"],
      ["tokens dropped", "response/dropped_token_ratio"]));
    charts.time.show(steps, metrics(["step", "timing_s/step"], ["rollout", "timing_s/gen"], ["rewards", "timing_s/reward"],
      ["training", "timing_s/update_actor"], ["weights", "timing_s/update_weights"], ["regroup", "timing_s/regroup"]));
    charts.bubble.show(steps, metrics(["rollout", "perf/bubble_share"], ["trainers wait", "trainer/waiting_ratio"]));
    charts.throughput.show(steps, metrics(["tokens", "perf/throughput"]));
    charts.queue.show(steps, metrics(["prompts", "round/queue_length"]));
    charts.functions.show(steps, matchingSeries(curves, /^reward\/([^/]+)\/mean$/));
    charts.domains.show(steps, matchingSeries(curves, /^reward\/domain\/(.+)\/mean$/));
    charts.latency.show(steps, matchingSeries(curves, /^reward\/([^/]+)\/seconds$/));
    charts.waiting.show(steps, metrics(["longest wait, s", "reward/max_wait_s"], ["waiting at once", "reward/max_queue_depth"]));
    charts.faults.show(steps, metrics(["faults", "reward/faults"], ["timed out", "reward/timed_out"], ["broke the sandbox", "reward/broke_sandbox"]));
    charts.episodes.show(steps, matchingSeries(curves, /^episodes\/failed\/(.+)$/).filter((one) => one.values.some(Boolean)));
    const mismatch = metrics(["mean", "rollout_corr/log_prob_mismatch_mean"], ["largest", "rollout_corr/log_prob_mismatch_max", { width: 0.7 }]);
    const limit = view.job.max_mismatch === null ? [] : [constant("limit of the mean", view.job.max_mismatch, curves)];
    charts.mismatch.show(steps, curves.values["rollout_corr/log_prob_mismatch_mean"] ? [...mismatch, ...limit] : []);
    charts.offPolicy.show(steps, metrics(["off-policy", "rollout_corr/off_policy_token_share"]));
  }

  showRounds(digests) {
    const steps = digests.map((one) => one.step), charts = this.charts;
    for (const [chart, name] of [[charts.distribution, "accepted"], [charts.others, "others"]]) {
      const values = (part) => digests.map((one) => (one[name] ? one[name][part] : null));
      const tint = name === "accepted" ? "one" : "two";
      chart.show(steps, [{ label: "longest", values: values("max"), colour: "five", width: 0, points: true },
        { label: "10%", values: values("p10"), colour: tint, width: 0.7, points: false },
        { label: "half", values: values("p50"), colour: tint }, { label: "90%", values: values("p90"), colour: tint, width: 0.7, points: false }]);
    }
    charts.moved.show(steps, [{ label: "moved", values: digests.map((one) => one.num_moved), colour: "moved" },
      { label: "aborted", values: digests.map((one) => one.num_aborted), colour: "aborted" },
      { label: "deferred", values: digests.map((one) => one.outcomes.deferred || 0), colour: "deferred" }]);
    const rounds = this.view.round_steps, wasNewest = this.round === undefined || this.round === this.newest;
    this.newest = rounds[rounds.length - 1];
    this.noRound.hidden = Boolean(rounds.length);
    this.roundBox.hidden = !rounds.length;
    const kinds = Object.fromEntries(digests.map((one) => [one.step, " · " + words(one.kind).toLowerCase()]));
    // New options would close a list that somebody has opened.
    if (this.changes.since("rounds", [rounds, kinds])) {
      this.roundSelect.replaceChildren(...rounds.slice().reverse().map((step) => el("option", { value: step }, step + (kinds[step] || ""))));
    }
    if (rounds.length) this.chooseRound(wasNewest || !rounds.includes(this.round) ? this.newest : this.round);
  }

  step(by) {
    const rounds = this.view.round_steps, place = rounds.indexOf(this.round) + by;
    if (place >= 0 && place < rounds.length) this.chooseRound(rounds[place]);
  }

  async chooseRound(step) {
    const rounds = this.view.round_steps;
    this.round = step;
    this.roundSelect.value = String(step);
    this.older.disabled = step === rounds[0];
    this.newer.disabled = step === this.newest;
    if (step === this.shownRound) return;
    try {
      const round = await this.source.round(step);
      if (step !== this.round) return;
      this.shownRound = step;
      this.timeline.show(round, this.view.digests.find((one) => one.step === step));
    } catch (error) {
      this.missed(error);
    }
  }

  showEvents() {
    const notices = ((this.view && this.view.runtime) || {}).notices || [], cluster = this.cluster;
    if (!this.changes.since("events", [notices, cluster])) return;
    const word = (name) => ({ name, class: "word" }), text = (name) => ({ name, class: "free" });
    const parts = [];
    if (cluster) {
      parts.push(wide(card("Conditions", !cluster.conditions.length ? el("p", { class: "dim" }, "The job has no conditions yet.") : table("Conditions of the RLJob", [word("Type"), word("Status"), word("Reason"), text("Message"), word("Since")],
        cluster.conditions.map((one) => [one.type, one.status, one.reason, one.message, clock(one.time)])))));
      parts.push(wide(card("Events", cluster.events === null
        ? el("p", { class: "dim" }, "You have no right to list events in this namespace.")
        : !cluster.events.length ? el("p", { class: "dim" }, "The API server has no events about the job; it deletes them after an hour.")
        : table("Newest first", [word("Time"), word("Reason"), text("Message"), { name: "Times", class: "number" }],
          cluster.events.slice().reverse().map((one) => [clock(one.time), one.reason, one.message, String(one.count)])))));
    } else {
      parts.push(el("p", { class: "dim" }, "Conditions and events are shown by `longshore ui` and `longshore report`, which read them with your rights."));
    }
    if (notices.length) {
      parts.push(wide(card("Notices of this attempt", table("Newest last", [{ name: "Number", class: "number" }, word("Reason"), text("Message")],
        notices.map((one) => [String(one.number), one.reason, one.message])))));
    }
    this.events.replaceChildren(el("div", { class: "cards" }, parts));
  }

  showMetrics(curves) {
    const names = Object.keys(curves.values), chosen = this.metricSelect.value || "actor/lr";
    if (this.changes.since("metrics", names)) this.metricSelect.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
    if (names.includes(chosen)) this.metricSelect.value = chosen;
    this.showMetric();
  }

  showMetric() {
    const curves = this.view.curves, name = this.metricSelect.value;
    this.charts.any.show(curves.steps, [{ label: name, values: curves.values[name] }]);
  }
}

const ACTIVITIES = {
  Download: "download from the Hub", PrepareModel: "model and warm start", StartEngines: "start of the engines",
  WaitForRewardPods: "waiting for reward pods", WaitForEnvironmentPods: "waiting for environment pods",
  Restore: "restore of the checkpoint",
  ProfileEngines: "measuring the engines", ProfileTrainers: "measuring the trainers", ProfileJudges: "measuring the judges",
  ProfileSizes: "measuring other tensor-parallel sizes", Train: "training", Publish: "weights to the engines",
  Evaluate: "evaluation", Checkpoint: "checkpoint", Done: "end of the pods", Failing: "end of the pods",
};

/** Share of an activity in the time of this attempt; null: not known. */
function timeShare(runtime, activity) {
  const spent = runtime.activitySeconds || {}, all = Object.values(spent).reduce((sum, one) => sum + one, 0);
  return all ? (spent[activity] || 0) / all : null;
}

function doing(runtime) {
  if (!runtime.activity) return "";
  const round = runtime.round && runtime.activity === "Rollout"
    ? ", " + words(runtime.round.kind).toLowerCase() + " round " + runtime.round.number + ", " + percent(runtime.round.fractionFinished || 0) + " finished" : "";
  return " · now: " + (ACTIVITIES[runtime.activity] || words(runtime.activity).toLowerCase()) + round;
}

/* A bar for what the coordinator does now, where it is known how much there is to do. */
function progressOf(runtime) {
  const found = runtime.progress;
  if (!found) return [];
  const name = ACTIVITIES[runtime.activity] || words(runtime.activity);
  const text = el("p", { class: "num" }, [amount(found), found.detail].filter(Boolean).join(" · "));
  return found.total ? [text, el("progress", { max: found.total, value: found.done, "aria-label": words(name) })] : [text];
}

function amount(progress) {
  const isBytes = progress.unit === "Bytes", shown = isBytes ? bytes : (value) => figure(value);
  return shown(progress.done) + (progress.total ? " of " + shown(progress.total) : "") + (isBytes ? "" : " " + progress.unit.toLowerCase());
}

function attempt(cluster, runtime) {
  const number = cluster ? cluster.attempt : runtime.attempt || 0;
  return el("span", { class: "dim" }, number > 1 ? "· attempt " + number : "");
}

/* As `problems` of the client: a job that begins waits for its pods as usual. */
function isProblem(condition, cluster) {
  const begins = ["Queued", "Pending", "Starting"].includes(cluster.phase) && ["WaitingForPods", "PodsNotReady", "Queued"].includes(condition.reason);
  if (["Admitted", "Scheduled", "Ready"].includes(condition.type)) return condition.status === "False" && !cluster.is_finished && !begins;
  return !["Complete", "Repurposed", "Resizing"].includes(condition.type) && condition.status === "True";
}

/* A configuration as YAML; strings that could be read as something else are quoted. */
function yaml(value, indent) {
  if (Array.isArray(value)) {
    if (!value.length) return "[]";
    return value.map((one) => "\n" + indent + "- " + yaml(one, indent + "  ").trimStart()).join("");
  }
  if (value !== null && typeof value === "object") {
    const fields = Object.entries(value);
    if (!fields.length) return "{}";
    const text = fields.map(([name, one]) => "\n" + indent + name + ":" + separated(yaml(one, indent + "  "))).join("");
    return indent ? text : text.trimStart();
  }
  return typeof value === "string" && /^[A-Za-z][\w ./-]*$/.test(value) && !/^(true|false|null|yes|no|on|off)$/i.test(value) ? value : JSON.stringify(value);
}

function separated(text) { return text.startsWith("\n") ? text : " " + text; }

const inlined = document.getElementById("data");
new Page(inlined ? new Inlined(JSON.parse(inlined.textContent)) : new Server()).run();
