// Zones, lines and masks drawn on a snapshot, and rules of them: as TOML to copy, and as a patch for `configure`.

import { clean, h, list, object, put } from "./dom.js";

const NS = "http://www.w3.org/2000/svg";
const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;
const LEAST = { zone: 3, line: 2, mask: 3 };
// Kinds of rules: what they tell, and the key that a number is for, with its default.
const RULES = {
  zone: { enter: ["something enters it"], leave: ["something leaves it"], dwell: ["something stays, for seconds:", "for_s", 10], count: ["there are more than:", "above", 0] },
  line: { cross: ["something crosses it"] },
  mask: {},
};
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
    for (const [name, value] of Object.entries({ viewBox: "0 0 1 1", preserveAspectRatio: "none", tabindex: "0", role: "application", "aria-label": "Drawing area: arrow keys move, Enter sets a point, Backspace takes one back, then a shape" })) this.svg.setAttribute(name, value);
    this.svg.addEventListener("click", (event) => this.clicked(event));
    this.svg.addEventListener("keydown", (event) => this.pressed(event));
    this.kind = h("select", { "aria-label": "What to draw" }, ["zone", "line", "mask"].map((kind) => h("option", { value: kind }, kind)));
    this.name = h("input", { "aria-label": "Name", placeholder: "name", value: "yard" });
    this.kind.addEventListener("change", () => this.choices());
    this.rule = h("select", { "aria-label": "Rule", onchange: () => this.choose() });
    this.amount = h("input", { type: "number", "aria-label": "Number of the rule", min: 0, step: "any" });
    this.clip = h("input", { type: "checkbox" });
    this.ruled = h("label", {}, this.clip, " keep a clip of it");
    this.words = h("p", { role: "status", class: "quiet" }, "Click the corners in the picture, or use the arrow keys and Enter.");
    this.text = h("textarea", { readonly: true, rows: 6, "aria-label": "TOML of what was drawn", hidden: true });
    const button = (words, act) => h("button", { type: "button", onclick: act }, words);
    this.copy = button("Copy", () => this.copied());
    this.sending = button("Send to the device", () => this.send());
    this.held = h("div", { class: "buttons" });
    this.panel = h("div", { class: "drawing", hidden: true },
      h("div", { class: "buttons" }, this.kind, this.name, button("Take back", () => this.back())),
      h("div", { class: "buttons" }, this.rule, this.amount, this.ruled, button("Add", () => this.add())), this.words, this.text, h("div", { class: "buttons" }, this.copy, this.sending), this.held);
    this.toggle = h("button", { type: "button", "aria-expanded": "false", onclick: () => this.open() }, "Draw zones, lines, masks");
    this.frame = h("div", { class: "frame" }, image, this.svg);
    this.element = h("div", {}, this.toggle, this.panel);
    this.svg.style.display = "none";
    this.choices();
    this.show();
  }

  // The rules that there are for what is drawn.
  choices() {
    const rules = Object.entries(RULES[this.kind.value]);
    this.rule.replaceChildren(h("option", { value: "" }, "no rule"), ...rules.map(([when, [words]]) => h("option", { value: when }, `an event when ${words}`)));
    this.rule.hidden = !rules.length;
    this.choose();
  }

  choose() {
    const [, key, usual] = RULES[this.kind.value][this.rule.value] ?? [];
    this.amount.hidden = !key;
    this.amount.value = usual ?? "";
    this.ruled.hidden = !this.rule.value;
  }

  open() {
    const opened = this.panel.hidden;
    this.panel.hidden = !opened;
    this.svg.style.display = opened ? "" : "none";
    this.toggle.setAttribute("aria-expanded", String(opened));
    this.show();
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

  // Take back a point, or without one the shape that was added last, whose points can be set anew.
  back() {
    if (!this.points.pop()) {
      const last = this.shapes.pop();
      if (!last) return;
      this.points = last.points;
      this.kind.value = last.kind;
      this.name.value = last.name;
      this.choices();
      put(this.words, `${last.kind === "mask" ? "The mask" : last.name} was taken back; ${this.points.length} points.`);
    }
    this.show();
  }

  add() {
    const kind = this.kind.value;
    const name = this.name.value.trim();
    if (this.points.length < LEAST[kind]) return put(this.words, `A ${kind} has at least ${LEAST[kind]} points.`);
    if (kind !== "mask" && !NAME.test(name)) return put(this.words, "A name has letters, digits, dots, - and _.");
    const taken = [...this.shapes, ...list(this.settings()?.zones), ...list(this.settings()?.lines)].map((each) => object(each).name);
    if (kind !== "mask" && taken.includes(name)) return put(this.words, `There is a ${name} already.`);
    this.shapes.push({ kind, name, points: this.points, rule: this.rule.value && this.written(kind, name) });
    this.points = [];
    put(this.words, `${kind === "mask" ? "The mask" : name} was added.`);
    this.show();
  }

  written(kind, name) {
    const when = this.rule.value;
    const [, key] = RULES[kind][when];
    const rule = { name: `${name}-${when}`, when, [kind]: name };
    if (key) rule[key] = Number(this.amount.value);
    return { ...rule, picture: when === "count" ? "frame" : "crop", ...(this.clip.checked ? { clip: true } : {}) };
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
    const holds = this.panel.hidden ? {} : object(this.settings());
    const held = [["mask", list(holds.masks)], ["zone", list(holds.zones).map((each) => object(each).polygon)], ["line", list(holds.lines).map((each) => object(each).points)]];
    const there = held.flatMap(([kind, shapes]) => shapes.filter(isShape).map((points) => draw(points, `${kind} held`, kind === "line")));
    this.remaining(holds);
    this.svg.replaceChildren(...there, ...this.shapes.map((each) => draw(each.points, each.kind)), draw(this.points, this.kind.value, true), ...dots, cursor);
    this.text.hidden = this.copy.hidden = !this.shapes.length;
    this.sending.hidden = !this.shapes.length || !this.operate;
    this.text.value = this.toml();
  }

  // A way to remove each zone, line, mask and rule that there is; a rule of it goes along.
  remaining(holds) {
    if (!this.operate) return;
    const buttons = [];
    for (const key of ["zones", "lines", "masks", "rules"])
      list(holds[key]).slice(0, 64).forEach((one, at) => {
        const name = object(one).name;
        const words = `Remove ${key.slice(0, -1)} ${clean(name ?? at + 1, 64)}`;
        buttons.push(this.operate.button(words, () => {
          const change = { [key]: holds[key].filter((each) => each !== one) };
          const of = { zones: "zone", lines: "line" }[key];
          if (of) change.rules = list(holds.rules).filter((each) => object(each)[of] !== name);
          this.configure(change, words);
        }));
      });
    this.held.replaceChildren(...buttons);
  }

  // What was drawn, as lists of the settings.
  lists() {
    const of = (kind) => this.shapes.filter((each) => each.kind === kind);
    return {
      masks: of("mask").map((each) => each.points),
      zones: of("zone").map(({ name, points }) => ({ name, polygon: points })),
      lines: of("line").map(({ name, points }) => ({ name, points })),
      rules: this.shapes.map((each) => each.rule).filter(Boolean),
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
    const holds = this.settings();
    if (!holds) return put(this.words, "This device does not say its settings (it has no config topic): copy the TOML instead.");
    const change = {};
    for (const [key, added] of Object.entries(this.lists())) if (added.length) change[key] = [...list(holds[key]), ...added];
    const sent = [...this.shapes];
    this.configure(change, `${clean(this.pipeline)}: what was drawn`, () => {
      this.shapes = this.shapes.filter((each) => !sent.includes(each));
    });
  }

  // What is refused stays in the drawing.
  configure(change, words, done = () => {}) {
    const { hash } = this.holds();
    const body = { pipelines: { [this.pipeline]: change }, persist: this.operate.persist.checked, ...(hash ? { if: hash } : {}) };
    this.operate.ask("configure", body, words, () => {
      done();
      this.show();
    });
  }
}

const isShape = (points) => list(points).length > 1 && points.every((point) => Array.isArray(point) && point.length === 2 && point.every((each) => typeof each === "number"));
