// Lines over time: a sparkline is an SVG of its own, a chart is uPlot's.

import { clean, clock, h, hours, number } from "./dom.js";

const NS = "http://www.w3.org/2000/svg";
const MOST_POINTS = 1200;
const MOST_LINES = 6;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function svg(tag, attributes) {
  const made = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// One figure of health: what it is, its latest value, and its way there.
export class Sparkline {
  constructor(title, unit, digits = 0) {
    this.title = title;
    this.unit = unit;
    this.digits = digits;
    this.value = h("strong", {}, "–");
    this.path = svg("path", { class: "line" });
    this.picture = svg("svg", { viewBox: "0 0 200 40", preserveAspectRatio: "none", role: "img" });
    this.picture.append(this.path);
    this.range = h("small", { class: "quiet" });
    this.element = h("div", { class: "spark" }, h("span", {}, title), this.value, this.picture, this.range);
  }

  // points: [time, value or null], oldest first.
  draw(points) {
    const known = points.filter(([, value]) => typeof value === "number");
    this.element.hidden = !known.length;
    if (!known.length) return;
    const values = known.map(([, value]) => value);
    const low = Math.min(...values);
    const high = Math.max(...values);
    const [first, last] = [known[0][0], known.at(-1)[0]];
    const x = (at) => (last > first ? (200 * (at - first)) / (last - first) : 200);
    const y = (value) => (high > low ? 38 - (36 * (value - low)) / (high - low) : 20);
    this.path.setAttribute("d", `M${known.map(([at, value]) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("L")}`);
    const now = `${number(values.at(-1), this.digits)} ${this.unit}`;
    const range = `${number(low, this.digits)} to ${number(high, this.digits)} in ${Math.max(1, Math.round((last - first) / 60))} min`;
    this.value.textContent = now;
    this.range.textContent = range;
    this.picture.setAttribute("aria-label", `${this.title}: ${now}; ${range}`);
  }
}

// Values of one pipeline, or its counts, as lines.
export class Chart {
  constructor(title) {
    this.names = [];
    this.data = [[]];
    this.area = h("div", { class: "area" });
    this.words = h("p", { class: "hidden" });
    this.element = h("figure", { class: "chart" }, h("figcaption", {}, title), this.area, this.words);
    this.sized = new ResizeObserver(() => this.plot?.setSize({ width: this.area.clientWidth, height: 180 }));
    this.sized.observe(this.area);
  }

  add(at, values) {
    for (const name of Object.keys(values)) {
      if (this.names.includes(name) || this.names.length >= MOST_LINES) continue;
      this.names.push(name);
      this.data.push(this.data[0].map(() => null));
      this.made = false;
    }
    // Times that go back (of a clip, of a clock that was set) would fold the line.
    if (this.data[0].length && at <= this.data[0].at(-1)) return;
    this.data[0].push(at);
    this.names.forEach((name, index) => this.data[index + 1].push(typeof values[name] === "number" ? values[name] : null));
    if (this.data[0].length > MOST_POINTS) for (const each of this.data) each.shift();
    this.drawn = false;
  }

  draw() {
    if (this.drawn || !this.area.clientWidth) return;
    this.drawn = true;
    if (this.made) {
      this.plot.setData(this.data);
    } else {
      this.plot?.destroy();
      const axis = { stroke: () => css("--quiet"), grid: { stroke: () => css("--line"), width: 1 }, ticks: { show: false } };
      const series = this.names.map((name, index) => ({
        label: clean(name, 60),
        stroke: () => css(`--s${index + 1}`),
        width: 2,
        spanGaps: true,
        points: { show: false },
        value: (plot, value) => value ?? this.data[index + 1].at(-1) ?? "–", // that is pointed at, or the latest
      }));
      const options = { width: this.area.clientWidth, height: 180, series: [{ value: (_plot, at) => (at ? clock(at) : "") }, ...series], axes: [{ ...axis, space: 90, values: (_plot, times) => times.map(hours) }, { ...axis, size: 56 }] };
      this.plot = new window.uPlot(options, this.data, this.area);
      this.made = true;
    }
    const latest = this.names.map((name, index) => `${clean(name, 60)} ${this.data[index + 1].at(-1) ?? "–"}`);
    this.words.textContent = `Latest: ${latest.join(", ")}`;
  }

  close() {
    this.sized.disconnect();
    this.plot?.destroy();
  }
}
