// Live parts and keys. Every page works without this file, because the server draws whole pages.
"use strict";

const busy = (part) =>
  part.querySelector("[data-dirty]") ||
  (part.contains(document.activeElement) && document.activeElement.matches("input, textarea, select"));

// Load this page again, and put each part that differs in the place of the old one.
let loading = false;
let changedMeanwhile = false;
async function refresh() {
  if (loading) { changedMeanwhile = true; return; }
  loading = true;
  try {
    const answer = await fetch(location.href.split("#")[0], { headers: { "X-Live": "1" } });
    // The login has ended, or a page that could not be shown can be shown now.
    if (answer.status === 403 || (answer.ok && "problem" in document.body.dataset)) { location.reload(); return; }
    const newPage = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const old of document.querySelectorAll("[data-live]")) {
      const part = newPage.getElementById(old.id);
      if (part) replace(old, part);
    }
    clocks();
    ages();
  } catch (error) {
    // The server is away. The event stream connects again, and then the page is loaded again.
  } finally {
    loading = false;
    if (changedMeanwhile) { changedMeanwhile = false; refresh(); }
  }
}

// The last HTML of each part from the server. The page itself changes the times.
const drawn = new WeakMap();
for (const part of document.querySelectorAll("[data-live]")) drawn.set(part, part.innerHTML);
function replace(old, part) {
  const now = part.innerHTML;
  if (drawn.get(old) === now) return;
  if (busy(old)) {
    const hint = document.getElementById("stale");
    if (old.id === "verbs" && hint) hint.hidden = false;
    return;
  }
  for (const open of old.querySelectorAll("details[id]")) {
    const same = part.querySelector("#" + CSS.escape(open.id));
    if (same) same.open = open.open;
  }
  const focused = old.contains(document.activeElement) ? document.activeElement : null;
  const path = focused && (focused.getAttribute("href") || focused.closest("[id]").id);
  old.className = part.className;
  old.replaceChildren(...part.childNodes);
  drawn.set(old, now);
  if (path) {
    const next = [...old.querySelectorAll("a, summary")].find(
      (link) => link.getAttribute("href") === path || link.closest("[id]").id === path);
    if (next) next.focus({ preventScroll: true });
  }
}

// Write moments in the time zone of the browser. Their titles have them in UTC.
function clocks() {
  for (const time of document.querySelectorAll("time[data-clock]")) {
    const at = new Date(time.dateTime), local = new Date(at - at.getTimezoneOffset() * 60000);
    const length = time.dataset.clock === "exact" ? 23 : 19;
    time.textContent = local.toISOString().slice(0, length).replace("T", " ");
  }
}

// Update the ages each second, also without a change on the server.
function ages() {
  for (const time of document.querySelectorAll("time[data-ago], time[data-ahead]")) {
    const ahead = "ahead" in time.dataset, span = (Date.now() - Date.parse(time.dateTime)) / 1000;
    const s = Math.max(0, Math.floor(ahead ? -span : span));
    const [a, b] = s < 60 ? [s + " s", ""] : s < 3600 ? [Math.floor(s / 60) + " min", s % 60 + " s"]
      : s < 86400 ? [Math.floor(s / 3600) + " h", Math.floor(s % 3600 / 60) + " min"]
      : [Math.floor(s / 86400) + " d", Math.floor(s % 86400 / 3600) + " h"];
    const age = b && !b.startsWith("0 ") ? a + " " + b : a;
    const text = !ahead ? age : span < 0 ? "in " + age : "now";
    if (time.textContent !== text) time.textContent = text;
  }
}

document.addEventListener("input", (event) => { event.target.closest("form[method=post]")?.setAttribute("data-dirty", ""); });
document.addEventListener("submit", (event) => {
  for (const button of event.target.querySelectorAll("button")) button.disabled = true;
});
document.addEventListener("change", (event) => {
  if (event.target.matches("form[data-auto] select")) event.target.form.requestSubmit();
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
  const rows = [...document.querySelectorAll("a[data-row]")];
  const at = rows.indexOf(document.activeElement);
  if (event.key === "/") document.querySelector("[data-key='/']").focus();
  else if (event.key === "j" && rows.length) rows[Math.min(at + 1, rows.length - 1)].focus();
  else if (event.key === "k" && rows.length) rows[Math.max(at - 1, 0)].focus();
  else return;
  event.preventDefault();
});

clocks();
if ("liveQuery" in document.body.dataset) {
  const stream = new EventSource("live?" + document.body.dataset.liveQuery);
  stream.onmessage = refresh;
  stream.onopen = refresh;
  window.addEventListener("pagehide", () => stream.close());
  setInterval(ages, 1000);
}
