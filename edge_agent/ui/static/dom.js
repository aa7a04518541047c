// Elements and texts. What a device has said becomes a text node, never HTML, and is cleaned on the
// way: marks without a shape (those that turn the direction of writing, too) are written out.

const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}]/gu;
const MOST = 400;

export function clean(value, most = MOST) {
  let text = typeof value === "string" ? value : value === undefined || value === null ? "" : JSON.stringify(value);
  if (text.length > most) text = `${text.slice(0, most)} … (${text.length} characters)`;
  return text.replace(HIDDEN, (mark) => `\\u${mark.codePointAt(0).toString(16).padStart(4, "0")}`);
}

// Make an element: attributes (on… are listeners, the rest is set as it is) and children.
export function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().map((child) => (child instanceof Node ? child : clean(child))));
  return made;
}

// Give an element a text, if it has another one.
export function put(element, value) {
  const text = clean(value);
  if (element.textContent !== text) element.textContent = text;
}

export const number = (value, digits = 1) => (typeof value === "number" ? value.toFixed(digits) : "–");

export function ago(seconds) {
  if (!seconds) return "never";
  const past = Math.max(0, Date.now() / 1000 - seconds);
  if (past < 15) return "now";
  if (past < 120) return `${Math.round(past)} s ago`;
  if (past < 7200) return `${Math.round(past / 60)} min ago`;
  if (past < 172800) return `${Math.round(past / 3600)} h ago`;
  return `${Math.round(past / 86400)} d ago`;
}

const moment = (time) => new Date(typeof time === "number" ? time * 1000 : time);
export const hours = (time) => moment(time).toLocaleTimeString([], { hourCycle: "h23" });

// With the date, as a page is open for days, and with the year where it is another.
export function clock(time) {
  const at = moment(time);
  const year = at.getFullYear() === new Date().getFullYear() ? {} : { year: "numeric" };
  return Number.isNaN(at.getTime()) ? clean(time) : `${at.toLocaleDateString([], { ...year, month: "short", day: "numeric" })}, ${hours(time)}`;
}

export const state = (name) => h("span", { class: `state ${/^[a-z-]+$/.test(name) ? name : "unknown"}` }, name);

export const object = (value) => (value && typeof value === "object" && !Array.isArray(value) ? value : {});
export const list = (value) => (Array.isArray(value) ? value : []);
