// One device: its picture, events, lines over time, models and pushes.

import { ago, clean, clock, h, list, number, object, put, state } from "./dom.js";
import { Drawing } from "./draw.js";
import { Operate } from "./operate.js";
import { Chart, Sparkline } from "./plot.js";

const MOST_EVENTS = 50;
const MOST_PUSHES = 60;
const SENSORS = /^(csv|npy|f32|wav|mqtt|serial|alsa):/;

const picture = (device, kind, name, at) => `/picture?${new URLSearchParams({ device, kind, name, at })}`;

export class DeviceView {
  constructor(name, rows, send) {
    this.name = name;
    this.operate = send && new Operate(name, send);
    this.rows = rows;
    this.kept = { info: {}, health: {}, source: {}, model: {}, count: {} };
    this.figures = [];
    this.charts = new Map();
    this.events = new Map();
    this.nameless = 0;
    this.aborts = new Map();
    this.pictured = new Set();
    this.dirty = new Set(["head", "pipelines", "models", "health"]);
    this.build();
    this.timer = setInterval(() => this.render(), 500);
    this.render();
  }

  build() {
    this.head = h("div", { class: "device-head" });
    this.pipelines = h("tbody");
    const columns = ["Pipeline", "Source", "Model", "fps", "p99 ms", "Dropped"];
    const table = h("table", { class: "plain" }, h("thead", {}, h("tr", {}, columns.map((title) => h("th", { scope: "col" }, title)))), this.pipelines);
    this.snapshots = new Map();
    this.shots = h("div", { class: "shots" });
    this.takes = h("p", { class: "buttons" });
    this.noShot = h("p", { class: "quiet" }, "No snapshot has come yet. A pipeline publishes them with snapshot = true in its settings.");
    this.log = h("ol", { class: "events", tabindex: "0", "aria-label": "Events, newest first" });
    this.noEvent = h("p", { class: "quiet" }, "No event since this page's server began.");
    this.lines = h("div", { class: "charts" });
    this.noLine = h("p", { class: "quiet" }, "No values yet.");
    this.sparks = [
      [1, new Sparkline("Results", "a second", 1)],
      [2, new Sparkline("Latency p99", "ms")],
      [3, new Sparkline("Processor", "%")],
      [4, new Sparkline("Memory", "MB")],
      [5, new Sparkline("Temperature", "°C")],
    ];
    this.changes = h("p", { class: "quiet", role: "status" });
    this.noHealth = h("p", { class: "quiet" }, "No health has come yet.");
    this.models = h("div", { class: "models" });
    this.noModel = h("p", { class: "quiet" }, "This device has told of no model yet.");
    this.pushes = h("ol", { class: "log", tabindex: "0", "aria-label": "Pushes, newest first" });
    this.noPush = h("p", { class: "quiet" }, "No push since this page's server began.");
    const part = (title, ...children) => h("section", { class: "part" }, h("h2", {}, title), ...children);
    this.element = h(
      "article", { class: "device" }, h("p", {}, h("a", { href: "#/" }, "← all devices")), this.head, this.operate?.notice ?? [],
      h("div", { class: "columns" },
        h("div", {}, part("Snapshots", this.noShot, this.shots, this.takes), part("Over time", this.noLine, this.lines)),
        h("div", {},
          part("Pipelines", h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Pipelines" }, table)),
          part("Health", this.noHealth, h("div", { class: "sparks" }, this.sparks.map(([, spark]) => spark.element))),
          part("Events", this.noEvent, this.log),
          this.operate ? part("Kept pictures and clips", ...this.operate.evidence) : [],
          this.operate ? part("Settings", this.operate.settings, h("label", {}, this.operate.persist, " also after a restart"), this.changes) : [],
          part("Models", this.noModel, this.models), part("Pushes", this.operate?.drop ?? [], this.noPush, this.pushes))),
    );
  }

  changed(ids, gone) {
    if (ids.includes(this.name) || gone.includes(this.name)) this.dirty.add("head");
  }

  tick() {
    this.dirty.add("head");
  }

  close() {
    clearInterval(this.timer);
    this.operate?.close();
    for (const chart of this.charts.values()) chart.close();
  }

  said(kind, name, body, at) {
    switch (kind) {
      case "figures":
        this.figures = body;
        this.dirty.add("health");
        break;
      case "health":
        this.health(body);
        break;
      case "info":
      case "status":
        this.kept[kind] = body ?? {};
        this.dirty.add("head").add("pipelines").add("models");
        break;
      case "source":
      case "model":
        if (body) this.kept[kind][name] = body;
        else delete this.kept[kind][name];
        this.dirty.add(kind === "model" ? "models" : "pipelines");
        break;
      case "pipeline":
        this.operate?.pipeline(name, body);
        if (name === "@device") this.mode = body?.mode;
        this.dirty.add("head").add("pipelines");
        break;
      case "config":
        this.configured(body);
        break;
      case "reply":
        this.operate?.reply(name, body);
        break;
      case "sent":
        this.sent(name, body, at);
        break;
      case "count":
        if (body) this.counted(name, body);
        break;
      case "result":
        this.result(name, body);
        break;
      case "snapshot":
        this.snapshot(name, body);
        break;
      case "event":
        this.event(name, body);
        break;
      case "gap":
        this.gap(body);
        break;
      case "answer":
        this.answered(body);
        break;
      case "picture":
        this.eventPicture(name);
        break;
      case "push":
        this.push(name, body, at);
        break;
    }
  }

  health(body) {
    this.kept.health = body ?? {};
    if (!body) return;
    const pipelines = Object.values(object(body.pipelines)).map(object);
    const sum = (values) => (values.length ? values.reduce((a, b) => a + b, 0) : null);
    const numbers = (values) => values.filter((value) => typeof value === "number");
    const time = Date.parse(body.time) / 1000 || Date.now() / 1000;
    const p99 = numbers(pipelines.map((each) => object(each.latency_ms).p99));
    const figures = [time, sum(numbers(pipelines.map((each) => each.fps))), p99.length ? Math.max(...p99) : null, body.cpu_percent, body.rss_mb, body.temperature_c];
    if (time > (this.figures.at(-1)?.[0] ?? 0)) this.figures.push(figures);
    if (this.figures.length > 400) this.figures.shift();
    this.dirty.add("head").add("health").add("pipelines");
  }

  // How the last change of settings goes, or went.
  configured(body) {
    this.config = body;
    const last = object(body?.last);
    const pending = body?.pending ? "A change is on probation." : "";
    const ended = last.outcome ? `The last change is ${clean(last.outcome)}${last.why ? `: ${clean(last.why)}` : ""}.` : "";
    put(this.changes, pending || ended);
    for (const { drawing } of this.snapshots.values()) drawing.show();
    for (const { pipeline, body: said } of [...this.events.values()]) if (typeof said.event === "string") this.event(pipeline, said);
  }

  sent(file, body, at) {
    const words = body.line ?? (body.ended === 0 ? "done" : "failed");
    if (body.line === undefined && this.operate) put(this.operate.progress, "");
    if (/^\S+: [a-z]+$/.test(words)) return; // a phase, which the device tells itself
    this.logged(h("li", {}, h("time", {}, clock(at)), " ", h("code", {}, clean(file, 40)), " ", clean(words)));
  }

  chart(key, title) {
    if (!this.charts.has(key)) {
      const chart = new Chart(title);
      this.charts.set(key, chart);
      this.lines.append(chart.element);
      this.noLine.hidden = true;
    }
    return this.charts.get(key);
  }

  counted(name, body) {
    const values = {};
    const sum = (counts) => Object.values(object(counts)).reduce((a, b) => a + (Number(b) || 0), 0);
    for (const [zone, inside] of Object.entries(object(body.zones))) values[zone] = sum(inside);
    for (const [line, ways] of Object.entries(object(body.lines)))
      for (const [way, crossed] of Object.entries(object(ways))) values[`${line} ${way}`] = sum(crossed);
    if (Object.keys(values).length) this.chart(`count ${name}`, `${clean(name)}: counts`).add(Date.now() / 1000, values);
  }

  result(name, body) {
    const values = {};
    if (Array.isArray(body.detections)) {
      values.objects = body.detections.length;
    } else if (body.anomaly) {
      values.score = object(body.anomaly).score;
      values.threshold = object(body.anomaly).threshold;
    } else if (body.values) {
      Object.assign(values, object(body.values));
    } else if (Array.isArray(body.classes)) {
      for (const each of body.classes.slice(0, 4).map(object)) values[clean(each.label, 60)] = each.score;
    }
    if (Object.keys(values).length) this.chart(name, clean(name)).add(Date.now() / 1000, values);
  }

  snapshot(name, body) {
    let shot = this.snapshots.get(name);
    if (!shot) {
      const image = h("img", { alt: `Snapshot of ${clean(name)}` });
      shot = { image, words: h("figcaption", {}, name) };
      // The next one is asked for when this one is there: a slow link sees fewer, not older ones.
      image.addEventListener("load", () => this.load(name));
      image.addEventListener("error", () => (shot.loading = false));
      this.snapshots.set(name, shot);
      shot.drawing = new Drawing(name, image, () => this.config, this.operate);
      this.shots.append(h("figure", {}, shot.drawing.frame, shot.words, shot.drawing.element));
      this.noShot.hidden = true;
    }
    put(shot.words, body.odd ? `${name}: ${body.odd}` : `${name}, ${clock(body.at)}`);
    if (body.odd) return;
    shot.next = body.at;
    if (!shot.loading) this.load(name);
  }

  load(name) {
    const shot = this.snapshots.get(name);
    shot.loading = shot.next !== null && shot.next !== undefined;
    if (!shot.loading) return;
    shot.image.src = picture(this.name, "snapshot", name, shot.next);
    shot.next = null;
  }

  event(pipeline, body) {
    const id = typeof body.event === "string" ? body.event : `without an id: ${(this.nameless += 1)}`;
    let entry = this.events.get(id);
    if (!entry) {
      entry = { element: h("li"), pipeline };
      this.events.set(id, entry);
      this.log.prepend(entry.element);
      this.noEvent.hidden = true;
      while (this.log.children.length > MOST_EVENTS) this.log.lastChild.remove();
      if (this.events.size > 2 * MOST_EVENTS) this.events.delete(this.events.keys().next().value);
    }
    if (entry.body !== body) entry.missed = false;
    entry.body = body;
    // What made it an event, not what was seen when it was over.
    if (body.state !== "end") entry.score = body.score;
    const facts = [body.label, body.track && `track ${body.track}`, body.zone && `zone ${body.zone}`, body.line && `line ${body.line} ${body.direction ?? ""}`];
    const numbers = { count: body.count, value: body.value, score: entry.score ?? body.score, seconds: body.seconds };
    for (const [key, figure] of Object.entries(numbers)) if (typeof figure === "number") facts.push(`${key === "value" ? clean(body.name ?? key, 80) : key} ${number(figure, key === "count" ? 0 : 2)}${key === "value" && body.unit ? ` ${clean(body.unit, 20)}` : ""}`);
    const { score, threshold } = object(body.anomaly);
    if (typeof score === "number") facts.push(`score ${number(score, 2)}${typeof threshold === "number" ? ` of ${number(threshold, 2)}` : ""}`);
    if (body.state === "end" && body.why) facts.push(body.why);
    const text = body.odd ?? [body.when, ...facts].filter(Boolean).map((fact) => clean(fact, 80)).join(" · ");
    const title = h("strong", {}, body.rule ?? pipeline);
    const when = h("time", {}, clock(body.began ?? body.time ?? ""));
    entry.element.replaceChildren(h("div", {}, title, " ", h("span", { class: "quiet" }, body.state ?? "", entry.missed ? ", its end may have been missed" : ""), h("p", {}, text), entry.answer ?? [], this.clip(entry, pipeline, body)), when);
    entry.element.title = clean(`${pipeline} ${id}`);
    if (this.pictured.has(`${pipeline}/${id}`)) this.eventPicture(`${pipeline}/${id}`);
  }

  // The page's server has heard nothing for a while: what had begun may be over.
  gap({ since, until }) {
    if (!this.hole || this.log.firstChild !== this.hole) this.log.prepend((this.hole = h("li", {}, h("div", { class: "quiet" }))));
    put(this.hole.firstChild, `Events between ${clock(since)} and ${clock(until)} may be missing: the page had no connection to the broker.`);
    for (const entry of [...this.events.values()]) {
      entry.missed = ["begin", "update"].includes(entry.body.state);
      if (entry.missed && typeof entry.body.event === "string") this.event(entry.pipeline, entry.body);
    }
  }

  // Of a rule that keeps clips: a button that fetches the one of this event, once the event is over.
  clip(entry, pipeline, { event, rule, state: at }) {
    const rules = list(object(object(object(this.config).pipelines)[pipeline]).rules);
    const keeps = rules.some((each) => object(each).clip === true && each.name === rule);
    if (!this.operate || !keeps || !["end", "once"].includes(at)) return [];
    const place = h("div", { class: "shots" });
    const show = () => this.operate.show({ pipeline, event, kind: "clip" }, place);
    entry.clip ??= h("div", {}, h("button", { type: "button", onclick: show }, "Clip"), place);
    return entry.clip;
  }

  // What a server or a model has said of an event.
  answered(body) {
    const entry = this.events.get(body.event);
    if (!entry) return;
    entry.answer = h("p", { class: body.text ? "answer" : "wrong" }, `${clean(body.server ?? body.model)}: ${clean(body.text ?? body.error)}`);
    entry.element.querySelector("div").append(entry.answer);
  }

  eventPicture(name) {
    this.pictured.add(name);
    const entry = this.events.get(name.slice(name.indexOf("/") + 1));
    if (!entry) return;
    entry.element.querySelector("img")?.remove();
    const source = picture(this.name, "picture", name, Date.now());
    entry.element.prepend(h("img", { src: source, alt: "Picture of this event", loading: "lazy" }));
  }

  push(transfer, body, at) {
    const said = [body.state, typeof body.percent === "number" ? `${number(body.percent, 0)} %` : "", body.why ?? body.odd ?? ""];
    const words = said.filter(Boolean).map((each) => clean(each, 200)).join(" · ");
    const previous = this.pushes.firstChild;
    // A transfer that goes on takes the place of its last line; another state begins a new one.
    if (previous?.of === `${transfer} ${body.state}`) previous.remove();
    const line = h("li", {}, h("time", {}, clock(at ?? Date.now() / 1000)), " ", h("code", {}, transfer.slice(0, 8)), " ", words);
    line.of = `${transfer} ${body.state}`;
    this.aborts.get(transfer)?.remove();
    if (this.operate && body.state === "need") {
      this.aborts.set(transfer, this.operate.abort(transfer));
      line.append(" ", this.aborts.get(transfer));
    }
    this.logged(line);
  }

  logged(line) {
    this.pushes.prepend(line);
    this.noPush.hidden = true;
    while (this.pushes.children.length > MOST_PUSHES) this.pushes.lastChild.remove();
  }

  render() {
    for (const part of this.dirty) this[`render_${part}`]();
    this.dirty.clear();
    for (const chart of this.charts.values()) chart.draw();
  }

  render_head() {
    const row = this.rows.get(this.name);
    const { info, health } = this.kept;
    const facts = object(info.facts);
    const words = row ? row.words : "This broker knows of no such device (any more).";
    const reasons = words.endsWith("…") ? list(health.why).slice(0, 20) : [];
    const engines = Object.entries(object(info.engines)).map(([name, version]) => `${name} ${clean(version)}`);
    const about = [facts.board || facts.cpu, facts.arch, facts.os, object(info.profile).name && `profile ${object(info.profile).name}`, info.agent && `agent ${info.agent}`, this.mode && `mode ${this.mode}`, ...engines, ...list(info.groups).map((group) => `@${clean(group)}`)];
    this.head.replaceChildren(
      h("h1", {}, this.name),
      h("p", {}, state(row?.state ?? "unknown"), " ", h("span", {}, words), row ? h("span", { class: "quiet" }, ` · last seen ${ago(row.seen)}`) : ""),
      ...reasons.map((why) => h("small", {}, why)),
      h("p", { class: "quiet" }, about.filter(Boolean).map((each) => clean(each, 80)).join(" · ")),
    );
  }

  render_pipelines() {
    const figures = object(this.kept.health.pipelines);
    const serving = new Map(list(this.kept.info.models).map((each) => [object(each).name, object(each)]));
    const rows = list(this.kept.info.pipelines).map(object).filter((each) => typeof each.name === "string");
    this.operate?.present(new Map(rows.map(({ name, model }) => [name, model])));
    if (this.operate) this.takes.replaceChildren(...rows.filter(({ source }) => !SENSORS.test(source)).slice(0, 20).map(({ name }) => this.operate.snapshot(name)));
    this.pipelines.replaceChildren(
      ...rows.slice(0, 100).map(({ name, source, model }) => {
        const figure = object(figures[name]);
        const at = object(this.kept.source[name]);
        const serves = serving.get(model) ?? {};
        const dropped = Object.entries(object(figure.dropped)).filter(([, count]) => count > 0).map(([why, count]) => `${count} ${why}`);
        const camera = figure.camera && figure.camera !== "ok" ? `camera ${clean(figure.camera, 20)}` : "";
        const wrong = at.error ?? serves.problem ?? camera;
        return h("tr", {},
          h("th", { scope: "row" }, name),
          h("td", {}, state(clean(at.state ?? figure.source ?? "opening")), h("small", { class: "wrong" }, wrong), h("small", {}, source)),
          h("td", {}, serves.serves ?? model ?? "", h("small", { class: "quiet" }, serves.engine ?? "")),
          h("td", {}, number(figure.fps)), h("td", {}, number(object(figure.latency_ms).p99, 0)),
          h("td", {}, dropped.join(", ")));
      }),
    );
  }

  render_health() {
    this.noHealth.hidden = this.figures.length > 0;
    for (const [index, spark] of this.sparks) spark.draw(this.figures.map((each) => [each[0], each[index]]));
  }

  render_models() {
    // The broker may keep others, of an earlier state folder.
    const { has } = this.kept.info;
    const models = Object.entries(this.kept.model).filter(([name]) => !Array.isArray(has) || has.includes(name));
    this.noModel.hidden = models.length > 0;
    this.models.replaceChildren(
      ...models.map(([name, body]) => {
        const last = object(body.last);
        const candidate = object(body.candidate);
        const lines = [["live", body.live ?? "none"], ["before", body.previous], ["has", list(body.versions).join(", ")], ["engine", body.engine],
          ["last", last.outcome && `${last.version} ${last.outcome}${last.why ? `: ${clean(last.why)}` : ""}`], ["error", body.error ?? body.odd]];
        const percent = typeof candidate.percent === "number" ? candidate.percent : 0;
        const trying = candidate.phase ? [h("p", {}, `${clean(candidate.version)}: ${clean(candidate.phase)} `, h("progress", { max: 100, value: percent, "aria-label": "how far it has come" }))] : [];
        return h("div", { class: "card" }, h("h3", {}, name), ...trying,
          h("dl", {}, lines.filter(([, value]) => value).flatMap(([key, value]) => [h("dt", {}, key), h("dd", {}, value)])), this.operate?.versions(name, body) ?? []);
      }),
    );
  }
}
