// Zones, lines and masks drawn on a snapshot: as TOML to copy, and as a patch for `configure`.

import { clean, h, list, object, put } from "./dom.js";

const NS = "http://www.w3.org/2000/svg";
const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;
const LEAST = { zone: 3, line: 2, mask: 3 };
const STEP = 0.02;
const round = (value) => Math.round(Math.min(1, Math.max(0, value)) * 1000) / 1000;

export class Drawing {
  // holds: gives the settings of the pipeline as they hold and their hash, or null; operate: may send, or null.
  constructor(pipeline, image, holds, operate) {
    this.pipeline = pipeline;
    this.holds = holds;
    this.operate = operate;
    this.points = [];
    this.shapes = [];
    this.cursor = [0.5, 0.5];
    this.svg = document.createElementNS(NS, "svg");
    for (const [name, value] of Object.entries({ viewBox: "0 0 1 1", preserveAspectRatio: "none", tabindex: "0", role: "application", "aria-label": "Drawing area: arrow keys move, Enter sets a point, Backspace takes one back" })) this.svg.setAttribute(name, value);
    this.svg.addEventListener("click", (event) => this.clicked(event));
    this.svg.addEventListener("keydown", (event) => this.pressed(event));
    this.kind = h("select", { "aria-label": "What to draw" }, ["zone", "line", "mask"].map((kind) => h("option", { value: kind }, kind)));
    this.name = h("input", { "aria-label": "Name", placeholder: "name", value: "yard" });
    this.rule = h("input", { type: "checkbox", id: `rule-${clean(pipeline)}` });
    this.words = h("p", { role: "status", class: "quiet" }, "Click the corners in the picture, or use the arrow keys and Enter.");
    this.text = h("textarea", { readonly: true, rows: 6, "aria-label": "TOML of what was drawn", hidden: true });
    const button = (words, act) => h("button", { type: "button", onclick: act }, words);
    this.copy = button("Copy", () => this.copied());
    this.sending = button("Send to the device", () => this.send());
    const ruled = h("label", {}, this.rule, " with a rule: an event when something enters it, or crosses it");
    this.panel = h("div", { class: "drawing", hidden: true },
      h("div", { class: "buttons" }, this.kind, this.name, button("Take a point back", () => this.back()), button("Add", () => this.add())),
      ruled, this.words, this.text, h("div", { class: "buttons" }, this.copy, this.sending));
    this.toggle = h("button", { type: "button", "aria-expanded": "false", onclick: () => this.open() }, "Draw zones, lines, masks");
    this.frame = h("div", { class: "frame" }, image, this.svg);
    this.element = h("div", {}, this.toggle, this.panel);
    this.svg.style.display = "none";
    this.show();
  }

  open() {
    const opened = this.panel.hidden;
    this.panel.hidden = !opened;
    this.svg.style.display = opened ? "" : "none";
    this.toggle.setAttribute("aria-expanded", String(opened));
  }

  clicked(event) {
    const box = this.svg.getBoundingClientRect();
    this.point([(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height]);
  }

  pressed(event) {
    const step = event.shiftKey ? 5 * STEP : STEP;
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
    if (moves[event.key]) this.cursor = this.cursor.map((at, axis) => round(at + moves[event.key][axis]));
    else if (event.key === "Enter") this.point(this.cursor);
    else if (event.key === "Backspace") this.back();
    else return;
    event.preventDefault();
    put(this.words, `At ${this.cursor.join(", ")}; ${this.points.length} points.`);
    this.show();
  }

  point(at) {
    if (this.kind.value === "line" && this.points.length >= 2) this.points.pop();
    this.points.push(at.map(round));
    put(this.words, `${this.points.length} points.`);
    this.show();
  }

  back() {
    this.points.pop();
    this.show();
  }

  add() {
    const kind = this.kind.value;
    const name = this.name.value.trim();
    if (this.points.length < LEAST[kind]) return put(this.words, `A ${kind} has at least ${LEAST[kind]} points.`);
    if (kind !== "mask" && !NAME.test(name)) return put(this.words, "A name has letters, digits, dots, - and _.");
    const taken = [...this.shapes, ...list(this.settings()?.zones), ...list(this.settings()?.lines)].map((each) => object(each).name);
    if (kind !== "mask" && taken.includes(name)) return put(this.words, `There is a ${name} already.`);
    this.shapes.push({ kind, name, points: this.points, rule: this.rule.checked && kind !== "mask" });
    this.points = [];
    put(this.words, `${kind === "mask" ? "The mask" : name} was added.`);
    this.show();
  }

  settings() {
    const config = this.holds();
    return config ? object(object(config.pipelines)[this.pipeline]) : null;
  }

  show() {
    const draw = (points, kind, open) => {
      const made = document.createElementNS(NS, kind === "line" || open ? "polyline" : "polygon");
      made.setAttribute("points", points.map((point) => point.join(",")).join(" "));
      made.setAttribute("class", `shape ${kind}`);
      return made;
    };
    const cursor = document.createElementNS(NS, "path");
    cursor.setAttribute("d", `M${this.cursor[0] - 0.02} ${this.cursor[1]}h.04M${this.cursor[0]} ${this.cursor[1] - 0.03}v.06`);
    cursor.setAttribute("class", "shape cursor");
    const dots = this.points.map(([x, y]) => draw([[x, y], [x, y]], "dot", true));
    this.svg.replaceChildren(...this.shapes.map((each) => draw(each.points, each.kind)), draw(this.points, this.kind.value, true), ...dots, cursor);
    this.text.hidden = this.copy.hidden = !this.shapes.length;
    this.sending.hidden = !this.shapes.length || !this.operate;
    this.text.value = this.toml();
  }

  // What was drawn, as lists of the settings.
  lists() {
    const of = (kind) => this.shapes.filter((each) => each.kind === kind);
    return {
      masks: of("mask").map((each) => each.points),
      zones: of("zone").map(({ name, points }) => ({ name, polygon: points })),
      lines: of("line").map(({ name, points }) => ({ name, points })),
      rules: this.shapes.filter((each) => each.rule).map(({ kind, name }) =>
        kind === "line" ? { name: `${name}-cross`, when: "cross", line: name, picture: "crop" } : { name: `${name}-enter`, when: "enter", zone: name, picture: "crop" }),
    };
  }

  toml() {
    const { masks, ...tables } = this.lists();
    const lines = masks.length ? [`masks = ${JSON.stringify(masks)}`] : [];
    for (const [name, entries] of Object.entries(tables))
      for (const entry of entries) lines.push("", `[[pipelines.${name}]]`, ...Object.entries(entry).map(([key, value]) => `${key} = ${JSON.stringify(value)}`));
    return lines.join("\n").trim();
  }

  async copied() {
    this.text.select();
    try {
      await navigator.clipboard.writeText(this.text.value);
      put(this.words, "Copied: put it below the pipeline in the settings file.");
    } catch {
      put(this.words, "It is selected: copy it with the keyboard.");
    }
  }

  send() {
    const config = this.holds();
    const holds = this.settings();
    if (!holds) return put(this.words, "This device does not say its settings (it has no config topic): copy the TOML instead.");
    const change = {};
    for (const [key, added] of Object.entries(this.lists())) if (added.length) change[key] = [...list(holds[key]), ...added];
    const body = { pipelines: { [this.pipeline]: change }, persist: this.operate.persist.checked };
    if (config.hash) body.if = config.hash;
    this.operate.ask("configure", body, `${clean(this.pipeline)}: what was drawn`);
    this.shapes = [];
    this.show();
  }
}
