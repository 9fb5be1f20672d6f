"use strict";
/* Where the page of a job gets what it shows. */

/* A server below the address of this page. */
class Server {
  constructor() { this.tag = ""; this.isLive = true; }

  async view() {
    const answer = await ask("api/view", this.tag ? { "If-None-Match": this.tag } : {});
    if (answer.status === 304) return null;
    const view = await answer.json();
    this.tag = answer.headers.get("ETag") || "";
    return view;
  }

  async cluster() { return this.get("api/cluster"); }
  async round(step) { return this.get("api/rounds/" + step); }
  async heads(kind, step) { return this.get("api/" + kind + "/" + step); }
  async group(kind, step, draw) { return this.get("api/" + kind + "/" + step + "/" + encodeURIComponent(draw)); }
  async get(path) { return (await ask(path)).json(); }
}

/* Keeps the promises of a source's groups, because pointing at the responses of a group asks for it many times. */
class Groups {
  constructor(source) {
    this.source = source;
    this.known = new Map();
  }

  /* The text of response `id`, as epoch-index-number. */
  async text(step, id) {
    const at = id.lastIndexOf("-"), draw = id.slice(0, at), key = step + "/" + draw;
    if (!this.known.has(key)) {
      if (this.known.size >= MAX_KEPT_GROUPS) this.known.clear();
      this.known.set(key, this.source.group("samples", step, draw));
    }
    const group = await this.known.get(key);
    const found = group && group.responses.find((response) => response.index === Number(id.slice(at + 1)));
    return found ? found.text.slice(0, MAX_QUOTE) || "(empty response)" : null;
  }
}

const MAX_KEPT_GROUPS = 100, MAX_QUOTE = 400;

/* A report: everything is in the file. */
class Inlined {
  constructor(data) { this.data = data; this.isLive = false; }
  async view() { return this.data; }
  async cluster() { return this.data.cluster; }
  async round(step) { return this.data.rounds[step]; }
  async heads(kind, step) { return this.groups(kind)[step]; }
  async group(kind, step, draw) { return this.groups(kind)[step].find((group) => group.draw === draw); }
  groups(kind) { return kind === "held-out" ? this.data.held_out : this.data.samples; }
}
