// The connection to the server, which view is shown, and what stands above every view.

import { clock, h, put } from "./dom.js";
import { DeviceView } from "./device.js";
import { FleetView } from "./fleet.js";

const main = document.querySelector("#main");
const banner = document.querySelector("#banner");
const rows = new Map();
let hello = {};
let plans = [];
let problem = "";
let away = false;
let socket = null;
let view = null;
let pause = 500;
let alive = 0; // when the server was last heard
let due = Infinity; // by when it must be, in the time of performance.now()
let verdict = 0; // the timer that gives it up

const BEAT = 10000; // it says something every 5 s
const GRACE = 6000; // after a machine has slept, what is due has yet to come
const FIRST = 60000; // all devices, over a slow link

function send(message) {
  const open = socket?.readyState === WebSocket.OPEN;
  if (open) socket.send(JSON.stringify(message));
  return open;
}

function show() {
  const [, kind, id] = location.hash.match(/^#\/(device)\/(.+)$/) ?? [];
  view?.close();
  let name = "";
  try {
    name = kind ? decodeURIComponent(id) : "";
  } catch {
    location.hash = "#/";
    return;
  }
  view = kind ? new DeviceView(name, rows, hello.operate ? send : null) : new FleetView(rows, plans, hello.operate);
  main.replaceChildren(view.element);
  document.title = kind ? `${name} · edge-agent` : "edge-agent";
  send({ watch: kind ? name : null });
}

function tell(words, stale = true) {
  banner.hidden = !words;
  put(banner, words);
  document.body.classList.toggle("stale", stale && Boolean(words));
}

function heard(frame) {
  if (frame.hello) {
    hello = frame.hello;
    rows.clear();
    plans = [];
    put(document.querySelector("#mode"), `${hello.version} · ${hello.operate ? "may change devices" : "read-only"}`);
    put(document.querySelector("#broker"), hello.broker);
    show();
  }
  if (frame.broker) {
    const { problem: words, since } = frame.broker;
    away = frame.broker.away;
    problem = words ? `Broker: ${words}.${away ? ` What is shown is as of ${clock(since)}.` : ""}` : "";
    tell(problem, away);
  }
  if (frame.rollouts) {
    plans = frame.rollouts;
    view.planned?.(plans);
  }
  if (frame.rows) {
    for (const row of frame.rows) rows.set(row.id, row);
    for (const id of frame.gone) rows.delete(id);
    view.changed(frame.rows.map((row) => row.id), frame.gone);
  }
  if (frame.says && frame.watch === view.name) for (const said of frame.says) view.said(...said);
}

function expect(time) {
  clearTimeout(verdict);
  due = performance.now() + time;
}

function lost() {
  socket.onopen = socket.onmessage = socket.onclose = null;
  socket.close(); // over a link that has stalled this takes a minute
  expect(Infinity);
  tell(`The page's server cannot be reached; trying again. What is shown is ${alive ? `as of ${clock(alive)}` : "old"}.`);
  setTimeout(start, pause);
  pause = Math.min(pause * 2, 5000);
}

function connect() {
  expect(BEAT);
  socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/live`);
  socket.onopen = () => {
    expect(FIRST);
    pause = 500;
    tell(problem, away);
  };
  socket.onmessage = (message) => {
    alive = Date.now() / 1000;
    expect(BEAT);
    heard(JSON.parse(message.data));
  };
  socket.onclose = lost;
}

// Ask for the password where one is needed.
async function start() {
  try {
    if ((await (await fetch("/session", { signal: AbortSignal.timeout(BEAT) })).text()) !== "password") return connect();
  } catch {
    return connect();
  }
  tell("");
  const password = h("input", { type: "password", id: "password", autocomplete: "current-password", required: true });
  const wrong = h("p", { role: "alert", class: "wrong" });
  const submit = async (event) => {
    event.preventDefault();
    const answer = await fetch("/login", { method: "POST", body: password.value });
    if (answer.ok) return connect();
    put(wrong, await answer.text());
    password.select();
  };
  const label = h("label", { for: "password" }, "Password of this page");
  main.replaceChildren(h("form", { class: "login", onsubmit: submit }, label, password, h("button", {}, "Log in"), wrong));
  password.focus();
}

addEventListener("hashchange", () => {
  if (!hello.version) return;
  show();
  main.focus();
  scrollTo(0, 0);
});
setInterval(() => {
  view?.tick();
  if (performance.now() < due) return;
  due = Infinity;
  verdict = setTimeout(lost, GRACE);
}, 5000);
start();
