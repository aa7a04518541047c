// What the page may change with --operate: settings, versions, pushes. Devices answer by themselves.

import { clean, h, list, object, put } from "./dom.js";

const ANSWER_SECONDS = { configure: 150, activate: 90, rollback: 90 };
const DONE_SECONDS = 20;
const BLOCK = 512;

const said = (input) => (input.type === "checkbox" ? "checked" : "value");

// Show in a field what holds, unless somebody writes there.
function hold(input, value) {
  const written = document.activeElement === input && ![input.held, input.sent].includes(input[said(input)]);
  input.held = value;
  if (!written) input[said(input)] = value;
}

// Give what shows again what holds, where what a field says now was not done.
function back(input) {
  const sent = (input.sent = input[said(input)]);
  return () => {
    if (input[said(input)] === sent) input[said(input)] = input.held;
  };
}

export class Operate {
  constructor(device, send) {
    this.device = device;
    this.send = send;
    this.waiting = new Map();
    this.fields = new Map();
    this.notice = h("p", { role: "status", class: "notice", hidden: true });
    this.settings = h("div", { class: "settings" });
    this.kept = h("ol", { class: "log", tabindex: "0", "aria-label": "Kept pictures and clips, newest first" });
    this.shown = h("div", { class: "shots" });
    this.evidence = [h("p", {}, h("button", { type: "button", onclick: () => this.list() }, "List what is kept")), this.shown, this.kept];
    this.persist = h("input", { type: "checkbox", id: "persist" });
    this.progress = h("p", { role: "status" });
    const file = h("input", { type: "file", id: "model-file", accept: ".tar,.onnx,.tflite" });
    const folder = h("input", { type: "file", id: "model-folder", webkitdirectory: true });
    for (const input of [file, folder])
      input.addEventListener("change", () => {
        this.push([...input.files].map((each) => [each.webkitRelativePath || each.name, each]));
        input.value = "";
      });
    this.drop = h("div", { class: "drop" }, h("p", {}, "Drop a model folder, .tar, .onnx or .tflite here, or choose one"),
      h("p", {}, h("label", { for: "model-file" }, "a file "), file), h("p", {}, h("label", { for: "model-folder" }, "a folder "), folder), this.progress);
    this.drop.addEventListener("dragover", (event) => event.preventDefault());
    this.drop.addEventListener("drop", (event) => this.dropped(event));
  }

  close() {
    clearTimeout(this.fading);
    for (const { timer } of this.waiting.values()) clearTimeout(timer);
  }

  say(words, seconds = 0) {
    clearTimeout(this.fading);
    this.notice.hidden = !words;
    put(this.notice, words);
    if (seconds) this.fading = setTimeout(() => this.say(""), seconds * 1000);
  }

  ask(verb, body, words, done = () => {}, undone = () => {}) {
    const id = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    this.say(`${words}: asked …`);
    const seconds = ANSWER_SECONDS[verb] ?? 30;
    const timer = setTimeout(() => {
      this.say(`${words}: no answer within ${seconds} s; it may still be done`);
      undone();
    }, seconds * 1000);
    this.waiting.set(id, { words, timer, done, undone });
    if (!this.send({ do: verb, device: this.device, id, body })) this.reply(id, { error: "the page's server cannot be reached" });
  }

  reply(id, body) {
    const asked = this.waiting.get(id);
    if (!asked) return id === "abort" ? this.say(`It was not aborted: ${clean(body.error)}`) : null;
    clearTimeout(asked.timer);
    this.waiting.delete(id);
    const warnings = list(object(body.result).warnings).map((each) => clean(each));
    (body.ok ? asked.done : asked.undone)();
    if (!body.ok) this.say(`${asked.words}: refused: ${clean(body.error)}`);
    else this.say([`${asked.words}: done`, ...warnings].join("; "), warnings.length ? 0 : DONE_SECONDS);
  }

  // The mode of the device, told where there is one or a rule names one.
  mode(body) {
    if (!this.modes) {
      const input = h("input", { id: "set-mode", placeholder: "none", maxlength: 64 });
      input.addEventListener("change", () => this.ask("set", { pipeline: "@device", mode: input.value.trim() || null }, `mode ${clean(input.value.trim() || "none")}`, undefined, back(input)));
      this.modes = { input, group: h("fieldset", {}, h("legend", {}, "the device"), h("label", { for: "set-mode" }, "mode"), input) };
      this.settings.prepend(this.modes.group);
    }
    this.modes.group.hidden = !body;
    hold(this.modes.input, clean(object(body).mode));
  }

  // Show the settings of these pipelines alone; the broker may keep others, of an earlier state folder.
  // models: by pipeline; without one there is no threshold.
  present(models) {
    for (const [name, { group, bound }] of this.fields) {
      group.hidden = !models.has(name);
      bound.hidden = models.get(name) === "readings";
    }
  }

  // What can be set of a pipeline, as it holds.
  pipeline(name, body) {
    if (name === "@device") return this.mode(body);
    if (!body) {
      this.fields.get(name)?.group.remove();
      this.fields.delete(name);
      return;
    }
    let field = this.fields.get(name);
    if (!field) {
      const key = `set-${this.fields.size}`;
      const set = (change, words, input) => this.ask("set", { pipeline: name, ...change, persist: this.persist.checked }, `${clean(name)} ${words}`, undefined, back(input));
      const enabled = h("input", { type: "checkbox", role: "switch", id: `${key}-on` });
      enabled.addEventListener("change", () => set({ enabled: enabled.checked }, enabled.checked ? "on" : "off", enabled));
      const numeric = (what, step) => {
        const input = h("input", { type: "number", id: `${key}-${what}`, step, min: 0, placeholder: "default" });
        input.addEventListener("change", () => set({ [what]: input.value === "" ? null : Number(input.value) }, `${what} ${input.value || "as the settings have it"}`, input));
        return input;
      };
      field = { enabled, threshold: numeric("threshold", "any"), rate: numeric("rate", "any") };
      field.bound = h("span", {}, h("label", { for: `${key}-threshold` }, "threshold"), field.threshold);
      field.group = h("fieldset", {}, h("legend", {}, name), h("label", { for: `${key}-on` }, enabled, " on"), field.bound, h("label", { for: `${key}-rate` }, "results a second"), field.rate);
      this.fields.set(name, field);
      this.settings.append(field.group);
    }
    hold(field.enabled, body.enabled === "ON");
    for (const key of ["threshold", "rate"]) hold(field[key], typeof body[key] === "number" ? String(body[key]) : "");
  }

  // The ways of one model to another version.
  versions(name, body) {
    const live = clean(body.live);
    const others = list(body.versions).filter((each) => typeof each === "string" && each !== body.live);
    const buttons = [];
    if (body.previous) buttons.push(this.button(`Roll back to ${clean(body.previous)}`, () => this.ask("rollback", { model: name }, `${clean(name)} back to ${clean(body.previous)}`)));
    for (const version of others.filter((each) => each !== body.previous).slice(0, 8))
      buttons.push(this.button(`Run ${clean(version)}`, () => this.ask("activate", { model: name, version }, `${clean(name)} to ${clean(version)}`)));
    return h("p", { class: "buttons", "data-live": live }, buttons);
  }

  button(words, act) {
    const sure = () => confirm(`${words} on ${clean(this.device)}?`) && act();
    return h("button", { type: "button", onclick: sure }, words);
  }

  snapshot(pipeline) {
    const words = `Snapshot of ${clean(pipeline)}`;
    return h("button", { type: "button", onclick: () => this.ask("snapshot", { pipeline }, words) }, words);
  }

  async fetched(what, query) {
    this.say(`${what}: asked …`);
    const answer = await fetch(`/kept?${new URLSearchParams({ device: this.device, ...query })}`, { method: "POST" });
    this.say(answer.ok ? "" : `${what}: ${clean(await answer.text())}`);
    return answer.ok ? answer : null;
  }

  // What the device keeps of events; a picture or clip comes when it is asked for.
  async list() {
    const answer = await this.fetched("What is kept");
    if (!answer) return;
    const all = await answer.json();
    if (all.length > 200) this.say("These are the latest 200; edge-agent evidence lists and saves all.");
    if (!all.length) this.say("Nothing is kept. Say in [evidence] how much may be: keep_mb.");
    const line = (each) => h("li", {}, h("time", {}, each.time), ` ${clean(each.pipeline)}, ${each.kind} `, h("button", { type: "button", onclick: () => this.show(each) }, "Show"));
    this.kept.replaceChildren(...all.slice(0, 200).map(line));
  }

  async show({ pipeline, event, kind }, place = this.shown) {
    const name = `${pipeline}-${event}`;
    const answer = await this.fetched(`The ${kind} of ${name}`, { event, kind });
    if (!answer) return;
    for (const old of place.querySelectorAll("img, video")) URL.revokeObjectURL(old.src);
    const src = URL.createObjectURL(await answer.blob());
    const made = kind === "clip" ? h("video", { src, controls: true, "aria-label": name }) : h("img", { src, alt: name });
    const save = h("a", { href: src, download: `${name}${kind === "clip" ? ".mp4" : ".jpg"}` }, "Save");
    place.replaceChildren(h("figure", {}, made, h("figcaption", {}, `${name} `, save)));
  }

  abort(transfer) {
    return this.button("Abort", () => {
      this.send({ do: "abort", device: this.device, id: "abort", body: { transfer } });
      this.say("The abort was sent; it ends a package that is still arriving.");
    });
  }

  async dropped(event) {
    event.preventDefault();
    const files = [];
    const read = async (entry, path) => {
      if (entry instanceof File) return files.push([path, entry]);
      if (entry.isFile) return files.push([path, await new Promise((done, fail) => entry.file(done, fail))]);
      const reader = entry.createReader();
      for (let some; (some = await new Promise((done, fail) => reader.readEntries(done, fail))).length; )
        for (const each of some) await read(each, `${path}/${each.name}`);
    };
    const dropped = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry() ?? item.getAsFile());
    for (const entry of dropped.filter(Boolean)) await read(entry, entry.name);
    this.push(files);
  }

  // files: [path, File]; one file is sent as it is, a folder as the tar that push takes.
  async push(files) {
    if (!files.length) return put(this.progress, "There was no file in it.");
    const top = files[0][0].split("/")[0];
    const isFolder = files[0][0].includes("/");
    if (files.length > 1 && !isFolder) return put(this.progress, "One file or one folder at a time.");
    put(this.progress, `${top}: sending to the page's server …`);
    try {
      const body = isFolder ? tar(files.map(([path, file]) => [path.slice(top.length + 1), file])) : files[0][1];
      const query = new URLSearchParams({ device: this.device, name: isFolder ? `${top}.tar` : top });
      const answer = await fetch(`/push?${query}`, { method: "POST", body });
      put(this.progress, `${top}: ${await answer.text()}`);
    } catch (problem) {
      put(this.progress, `${top}: ${problem.message}`);
    }
  }
}

// Make an ustar of files, with what a reader of it needs to know.
function tar(files) {
  const parts = [];
  for (const [path, file] of files) {
    const header = new Uint8Array(BLOCK);
    const write = (at, text) => header.set(new TextEncoder().encode(text), at);
    const name = new TextEncoder().encode(path);
    if (name.length > 100) throw new Error(`${path}: the name is too long`);
    header.set(name, 0);
    write(100, "0000644\0" + "0000000\0" + "0000000\0" + `${file.size.toString(8).padStart(11, "0")}\0` + "00000000000\0" + "        0");
    write(257, "ustar\x0000");
    const sum = header.reduce((a, b) => a + b, 0);
    write(148, `${sum.toString(8).padStart(6, "0")}\0 `);
    parts.push(header, file, new Uint8Array((BLOCK - (file.size % BLOCK)) % BLOCK));
  }
  return new Blob([...parts, new Uint8Array(2 * BLOCK)]);
}
