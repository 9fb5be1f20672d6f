"use strict";
/* Where the page of a job gets what it shows. */

/* A server below the address of this page. */
class Server {
  constructor() { this.tag = ""; this.isLive = true; }

  async view() {
    const answer = await fetch("api/view", { headers: this.tag ? { "If-None-Match": this.tag } : {} });
    if (answer.status === 304) return null;
    const view = await this.read(answer);
    this.tag = answer.headers.get("ETag") || "";
    return view;
  }

  async cluster() { return this.get("api/cluster"); }
  async round(step) { return this.get("api/rounds/" + step); }
  async heads(step) { return this.get("api/samples/" + step); }
  async group(step, draw) { return this.get("api/samples/" + step + "/" + encodeURIComponent(draw)); }
  async get(path) { return this.read(await fetch(path)); }

  async read(answer) {
    if (!answer.ok) throw new Error((await answer.text()).slice(0, 500) || answer.statusText);
    return answer.json();
  }
}

/* A report: everything is in the file. */
class Inlined {
  constructor(data) { this.data = data; this.isLive = false; }
  async view() { return this.data; }
  async cluster() { return this.data.cluster; }
  async round(step) { return this.data.rounds[step]; }
  async heads(step) { return this.data.samples[step]; }
  async group(step, draw) { return this.data.samples[step].find((group) => group.draw === draw); }
}
