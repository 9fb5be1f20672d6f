"use strict";
/* Line charts over steps, drawn by uPlot; a chart that nothing is known for is not there. */

const CHART_HEIGHT = 190;
const PALETTE = ["one", "two", "three", "four", "five", "six"];

/* Steps of a time axis, in seconds. */
const MINUTES = [1, 2, 5, 10, 15, 30, 60, 120, 240, 720, 1440].map((minutes) => minutes * 60);

function hour(time) {
  return new Date(time * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
}

class Chart {
  /* series: [{label, values, colour?, points?, dash?, width?}], bands: [[upper, lower, colour]] by place in series */
  constructor(title, options) {
    this.title = title;
    this.options = options || {};
    this.plotNode = el("div", { class: "plot" });
    this.node = el("figure", { class: "card", hidden: true }, el("h3", {}, title), this.plotNode);
    this.plot = null;
    this.shape = "";
    new ResizeObserver(() => this.resize()).observe(this.plotNode);
  }

  show(steps, series) {
    const known = series.filter((one) => one.values && one.values.some((value) => value !== null));
    this.node.hidden = !known.length;
    if (!known.length) return;
    this.data = [steps, ...known.map((one) => one.values)];
    this.series = known;
    const shape = JSON.stringify(known.map((one) => one.label));
    if (this.plot && shape === this.shape) this.plot.setData(this.data);
    else this.rebuild();
    this.shape = shape;
    this.plot.ctx.canvas.setAttribute("aria-label", this.summary(steps, known));
  }

  summary(steps, known) {
    const at = (place) => (this.options.time ? hour(steps[place]) : steps[place]);
    const newest = known.slice(0, 6).map((one) => {
      const place = lastPlace(one.values);
      return one.label + " " + figure(one.values[place]) + " at " + (this.options.x || "step") + " " + at(place);
    });
    return this.title + ": " + newest.join("; ");
  }

  rebuild() {
    if (!this.series) return;
    if (this.plot) this.plot.destroy();
    const text = colour("dim"), line = colour("line");
    const time = this.options.time;
    const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const isSparse = this.data[0].length < 40;
    const x = { label: this.options.x || "step", value: (plot, value) => {
      const shown = value === null ? plot.data[0][plot.data[0].length - 1] : value;
      return time ? hour(shown) : figure(shown);
    } };
    const series = this.series.map((one, place) => {
      const stroke = colour(one.colour || PALETTE[place % PALETTE.length]);
      return {
        label: one.label, stroke, width: one.width === undefined ? 1.6 : one.width, dash: one.dash, spanGaps: true,
        // Without a pointer, the legend shows the last value that is known.
        value: (plot, value, place, at) => figure(at === null || at === undefined ? plot.data[place][lastPlace(plot.data[place])] : value),
        points: { show: one.points === undefined ? isSparse : one.points, size: 4, stroke, fill: stroke },
      };
    });
    this.plot = new uPlot({
      width: this.width(), height: CHART_HEIGHT, series: [x, ...series],
      scales: { x: { time: Boolean(time) }, y: this.scale() },
      axes: [
        time ? { ...axis, incrs: MINUTES, values: (_, values) => values.map(hour) } : { ...axis, values: (_, values) => values.map((value) => (Number.isInteger(value) ? figure(value) : "")) },
        { ...axis, size: 58, values: (_, values) => values.map((value) => figure(value)) },
      ],
      bands: (this.options.bands || []).filter(([upper, lower]) => lower <= series.length).map(([upper, lower, name]) => ({
        series: [upper, lower], fill: colour(name) + "33",
      })),
      legend: { live: true }, cursor: { y: false, points: { size: 6 } },
    }, this.data, this.plotNode);
    this.plot.ctx.canvas.setAttribute("role", "img");
    this.plot.ctx.canvas.setAttribute("aria-label", this.summary(this.data[0], this.series));
  }

  scale() {
    if (this.options.log) return { distr: 3 };
    if (!this.options.zero) return {};
    return { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.08 : 1] };
  }

  width() { return Math.max(200, this.plotNode.clientWidth); }

  resize() {
    if (this.plot && this.plotNode.clientWidth && this.plot.width !== this.width()) {
      this.plot.setSize({ width: this.width(), height: CHART_HEIGHT });
    }
  }
}

/* Place of the last known value; -1: none is known. */
function lastPlace(values) {
  let place = values.length - 1;
  while (place >= 0 && (values[place] === null || values[place] === undefined)) place -= 1;
  return place;
}

/* Series of metrics by name; those that a job does not have are left out by the chart. */
function metricSeries(curves, pairs) {
  return pairs.map(([label, name, options]) => ({ label, values: curves.values[name], ...options }));
}

/* One series for each metric that the pattern matches; its first group is the label. */
function matchingSeries(curves, pattern) {
  return Object.keys(curves.values).map((name) => [pattern.exec(name), name])
    .filter(([match]) => match).map(([match, name]) => ({ label: match[1], values: curves.values[name] }));
}

function constant(label, value, curves) {
  return { label, values: curves.steps.map(() => value), colour: "five", dash: [6, 4], points: false, width: 1 };
}
