// Roll-outs that lie on the broker: how far the devices of each wave are, and what is wrong.

import { clean, h, put } from "./dom.js";

const ENDED = ["live", "rejected", "rolled-back", "aborted", "superseded"];
const MOST_NAMED = 8;
const counted = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;

export class Rollouts {
  constructor(rows, operate) {
    this.rows = rows;
    this.operate = operate;
    this.list = h("div");
    this.words = h("p", { role: "status" });
    this.element = h("section", { class: "part", hidden: true }, h("h2", {}, "Roll-outs"), this.list, this.words);
  }

  draw(plans) {
    const shown = plans.map((plan) => ({ ...plan, lines: plan.waves.map((wave, number) => this.wave(plan, wave, number)) }));
    const text = JSON.stringify(shown);
    if (text === this.text) return;
    this.text = text;
    this.element.hidden = !plans.length;
    this.list.replaceChildren(...shown.map((plan) => this.card(plan)));
  }

  card({ id, label, state, wave, waves, by, why, lines }) {
    const at = waves.length > 1 ? `, wave ${wave + 1} of ${waves.length}` : "";
    const acts = { running: ["pause", "abort"], paused: ["abort"] }[state] ?? [];
    const buttons = this.operate ? acts.map((verb) => h("button", { type: "button", onclick: () => this.act(verb, id) }, verb[0].toUpperCase() + verb.slice(1))) : [];
    return h("div", { class: "card" }, h("h3", {}, label, h("small", {}, id)), h("p", {}, h("strong", {}, state), at, h("span", { class: "quiet" }, ` · by ${clean(by, 80)}${why ? ` · ${clean(why)}` : ""}`)),
      h("ol", { class: "waves" }, lines.map(([words, wrong]) => h("li", {}, words, wrong.map((each) => h("small", { class: "wrong" }, each))))), buttons.length ? h("p", { class: "buttons" }, buttons) : []);
  }

  // What the devices of a wave say: a line, and one for each reason why something went wrong.
  wave(plan, wave, number) {
    const states = new Map();
    const wrong = new Map();
    let members = 0;
    for (const row of this.rows.values()) {
      const [own, said, why] = Object.hasOwn(row.rollouts, plan.id) ? row.rollouts[plan.id] : [];
      if (own !== number) continue;
      members += 1;
      const state = row.state === "offline" && !ENDED.includes(said) ? "offline" : said;
      states.set(state, (states.get(state) ?? 0) + 1);
      const words = `${said}${why ? `: ${why}` : ""}`;
      if (why || said === "rejected" || said === "rolled-back") wrong.set(words, [...(wrong.get(words) ?? []), row.id]);
    }
    const counts = [...states].sort().map(([state, count]) => `${count} ${clean(state, 30)}`);
    const named = ([words, ids]) => `${words} (${ids.slice(0, MOST_NAMED).join(", ")}${ids.length > MOST_NAMED ? ` and ${ids.length - MOST_NAMED} more` : ""})`;
    return [`${wave}: ${counted(members, "device")}${counts.length ? `: ${counts.join(", ")}` : ""}`, [...wrong].map(named)];
  }

  async act(verb, id) {
    if (!confirm(`${verb === "abort" ? "Abort" : "Pause"} ${clean(id)}?`)) return;
    put(this.words, `${id}: asked …`);
    const answer = await fetch(`/rollout?${new URLSearchParams({ id, verb })}`, { method: "POST" });
    put(this.words, await answer.text());
  }
}
