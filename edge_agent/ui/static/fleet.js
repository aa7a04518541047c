// The table of all devices. Only what has changed is written; only what is filtered out is hidden.

import { ago, clean, h, number, put, state } from "./dom.js";
import { Rollouts } from "./rollouts.js";

const STATES = ["all", "offline", "unknown", "degraded", "ok", "behind"];
const SORT = {
  id: (row) => row.id,
  state: (row) => STATES.indexOf(row.state),
  models: (row) => row.models.map((model) => `${model.name}@${model.live}`).join(),
  fps: (row) => -(row.fps ?? -1),
  p99: (row) => -(row.p99 ?? -1),
  temperature: (row) => -(row.temperature ?? -1),
  seen: (row) => -row.seen,
};
const COLUMNS = [
  ["id", "Device"],
  ["state", "State"],
  ["models", "Models"],
  ["fps", "fps", "results a second, of all its pipelines"],
  ["p99", "p99 ms", "capture to publish, of its slowest pipeline"],
  ["temperature", "°C"],
  ["seen", "Last seen"],
];
const kept = { state: "all", group: "", text: "", sort: "id" }; // while devices are looked at

// Made once: a comparison that makes its own takes many times as long, and there are thousands a second.
const { compare } = new Intl.Collator(undefined, { numeric: true });
const newer = (a, b) => compare(a, b) > 0;

export class FleetView {
  name = null;

  constructor(rows, plans, operate) {
    this.rows = rows;
    this.plans = plans;
    this.rollouts = new Rollouts(rows, operate);
    this.lines = new Map();
    this.dirty = new Set(rows.keys());
    this.order = "";
    this.scheduled = false;
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "Show only" });
    this.buttons = new Map(STATES.map((name) => [name, this.chip(name)]));
    const search = h("input", { type: "search", id: "search", placeholder: "name, model, reason …", value: kept.text });
    search.addEventListener("input", () => this.filter("text", search.value));
    this.groups = h("select", { id: "group" }, h("option", { value: "" }, "all groups"));
    this.groups.addEventListener("change", () => this.filter("group", this.groups.value));
    this.body = h("tbody", { role: "rowgroup" });
    this.empty = h("p", { class: "quiet", role: "status" });
    const table = h("table", { class: "fleet", role: "table", "aria-label": "Devices" }, h("thead", { role: "rowgroup" }, this.head()), this.body);
    this.element = h(
      "section", {}, h("h1", { class: "hidden" }, "Devices"),
      h("div", { class: "filters" }, this.chips, h("span", {}, h("label", { for: "search" }, "Search "), search),
        h("span", {}, h("label", { for: "group" }, "Group "), this.groups)),
      this.rollouts.element, table, this.empty,
    );
    this.schedule();
  }

  chip(name) {
    const button = h("button", { type: "button", class: `chip ${name}`, onclick: () => this.filter("state", name) });
    this.chips.append(button);
    return button;
  }

  head() {
    this.heads = COLUMNS.map(([key, title, more]) => {
      const button = h("button", { type: "button", title: more ?? null, onclick: () => this.filter("sort", key) }, title);
      return h("th", { scope: "col", role: "columnheader", class: `c-${key}` }, button);
    });
    return h("tr", { role: "row" }, this.heads);
  }

  filter(key, value) {
    kept[key] = value;
    this.all = true;
    this.schedule();
  }

  changed(ids, gone) {
    for (const id of ids) this.dirty.add(id);
    for (const id of gone) {
      this.lines.get(id)?.row.remove();
      this.lines.delete(id);
      this.dirty.delete(id);
    }
    this.schedule();
  }

  said() {}

  planned(plans) {
    this.plans = plans;
    this.schedule();
  }

  tick() {
    for (const [id, line] of this.lines) put(line.cells.seen, ago(this.rows.get(id).seen));
  }

  close() {
    this.closed = true;
  }

  schedule() {
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(() => {
      this.scheduled = false;
      if (!this.closed) this.render();
    });
  }

  render() {
    const lagging = this.lag();
    for (const id of new Set([...this.dirty, ...lagging])) if (this.rows.has(id)) this.write(this.rows.get(id));
    for (const id of this.all ? this.lines.keys() : new Set([...this.dirty, ...lagging])) {
      const line = this.lines.get(id);
      if (line) line.row.hidden = !this.matches(this.rows.get(id));
    }
    this.dirty.clear();
    this.all = false;
    this.arrange();
    this.sum();
    this.rollouts.draw(this.plans);
  }

  // Find who lags behind a roll-out, or runs an older version of a model than another device does; return those that changed.
  lag() {
    const newest = new Map();
    for (const row of this.rows.values())
      for (const { name, live } of row.models)
        if (live && (!newest.has(name) || newer(live, newest.get(name)))) newest.set(name, live);
    const changed = [];
    for (const row of this.rows.values()) {
      const older = row.models.filter(({ name, live }) => live && newer(newest.get(name), live)).map(({ name }) => `${name} ${newest.get(name)}`);
      const behind = [...row.lags, ...older];
      if (String(this.lines.get(row.id)?.behind) !== String(behind)) changed.push(row.id);
      row.behind = behind;
    }
    return changed;
  }

  write(row) {
    let line = this.lines.get(row.id);
    if (!line) {
      const cells = Object.fromEntries(COLUMNS.map(([key, title]) => [key, h("td", { role: "cell", class: `c-${key}`, "data-title": title })]));
      cells.id.append(h("a", { href: `#/device/${encodeURIComponent(row.id)}` }, row.id), h("small"));
      cells.state.append(state(row.state), h("small"));
      line = { row: h("tr", { role: "row" }, Object.values(cells)), cells };
      this.lines.set(row.id, line);
      this.order = "";
    }
    const { cells } = line;
    line.behind = row.behind;
    put(cells.id.lastChild, row.groups.map((group) => `@${group}`).join(" "));
    if (line.state !== row.state) cells.state.firstChild.replaceWith(state(row.state));
    line.state = row.state;
    put(cells.state.lastChild, row.words);
    this.models(cells.models, row);
    put(cells.fps, number(row.fps));
    put(cells.p99, number(row.p99, 0));
    put(cells.temperature, number(row.temperature, 0));
    put(cells.seen, ago(row.seen));
    line.text = [row.id, row.words, row.state, row.agent, ...row.models.map((model) => `${model.name}@${model.live}`)].join("\n").toLowerCase();
  }

  models(cell, row) {
    const words = JSON.stringify([row.models, row.behind]);
    if (cell.said === words) return;
    cell.said = words;
    const behind = row.behind.length ? [h("small", { class: "behind" }, `behind: ${row.behind.join(", ")}`)] : [];
    cell.replaceChildren(
      ...row.models.map((model) => {
        const next = model.phase ? ` → ${model.next} ${model.phase}` : "";
        return h("span", { class: "model" }, `${model.name}${model.live ? `@${model.live}` : " (none)"}${next}`);
      }),
      ...behind,
      h("small", { class: "quiet" }, row.agent && `agent ${row.agent}`),
    );
  }

  matches(row) {
    if (kept.state === "behind" ? !row.behind.length : kept.state !== "all" && row.state !== kept.state) return false;
    if (kept.group && !row.groups.includes(kept.group)) return false;
    return this.lines.get(row.id).text.includes(kept.text.toLowerCase());
  }

  arrange() {
    const by = SORT[kept.sort];
    const ids = [...this.lines.keys()].map((id) => [by(this.rows.get(id)), id]);
    ids.sort(([a, x], [b, y]) => (typeof a === "number" && a !== b ? a - b : compare(a, b) || compare(x, y)));
    const order = ids.map(([, id]) => id).join("\n");
    for (const [at, [key]] of COLUMNS.entries()) this.heads[at].setAttribute("aria-sort", key === kept.sort ? "ascending" : "none");
    // Rows that move while one reads are a nuisance: figures sort again only when asked to.
    const moves = ["id", "state", "models"].includes(kept.sort) || this.sorted !== kept.sort || this.order === "";
    if (order === this.order || !moves) return;
    this.order = order;
    this.sorted = kept.sort;
    this.body.append(...ids.map(([, id]) => this.lines.get(id).row));
  }

  sum() {
    const count = Object.fromEntries(STATES.map((name) => [name, 0]));
    const groups = new Set();
    for (const row of this.rows.values()) {
      count.all += 1;
      count[row.state] += 1;
      if (row.behind.length) count.behind += 1;
      for (const group of row.groups) groups.add(group);
    }
    for (const [name, button] of this.buttons) {
      put(button, `${count[name]} ${name === "all" ? (count.all === 1 ? "device" : "devices") : name}`);
      button.setAttribute("aria-pressed", String(kept.state === name));
      button.hidden = name !== "all" && !count[name] && kept.state !== name;
    }
    const names = [...groups].sort();
    if (this.groups.said !== names.join("\n")) {
      this.groups.said = names.join("\n");
      this.groups.replaceChildren(h("option", { value: "" }, "all groups"), ...names.map((name) => h("option", { value: name }, clean(name))));
      this.groups.value = kept.group;
    }
    const shown = [...this.lines.values()].some((line) => !line.row.hidden);
    put(this.empty, shown ? "" : count.all ? "No device is like that." : "This broker knows of no device yet. Is it the right one, and does an agent run?");
  }
}
