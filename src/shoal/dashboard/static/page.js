// The page: hears what the run does, shows it, and sends what its buttons ask for.

import { USES, clock, lines, number, precise, timeline } from "/static/charts.js";

const $ = (id) => document.getElementById(id);
const OVER = ["finished", "ended early", "gone"];
const AGAIN = 1000; // milliseconds

// The token comes in the address's fragment, which browsers send to nobody, and is kept for this tab alone.
const given = new URLSearchParams(location.hash.slice(1)).keys().next().value;
if (given) {
  sessionStorage.setItem("token", given);
  history.replaceState(null, "", location.pathname + location.search);
}
const token = sessionStorage.getItem("token") || "";

let chosen = new URLSearchParams(location.search).get("run");
let facts = null;
let wanted = null; // workers, once somebody has touched the stepper
let log = null; // which of the logs is drawn
let hearing = null;
let last = null; // what was heard last
const drawn = new Map(); // what each drawing shows, so that it is drawn anew only if that has changed

function node(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function set(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

// Hearing ----------------------------------------------------------------------------------------------

async function hear() {
  for (;;) {
    hearing = new AbortController();
    const query = chosen ? `?run=${encodeURIComponent(chosen)}` : "";
    try {
      const answer = await fetch(`/api/events${query}`, { headers: { Authorization: `Bearer ${token}` }, signal: hearing.signal });
      if (answer.status === 401) return notice("This page needs its token: open the whole address that was printed, with what follows the #.", "bad");
      if (!answer.ok) notice(await answer.text(), "bad");
      else await follow(answer.body.pipeThrough(new TextDecoderStream()).getReader());
    } catch (error) {
      if (error.name === "AbortError") continue;
    }
    if (facts && OVER.includes(facts.state)) return over();
    if (facts) notice("The page has lost its server. It tries to reach it again.", "bad");
    await new Promise((wake) => setTimeout(wake, AGAIN));
  }
}

async function follow(reader) {
  let kept = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    kept += value;
    const events = kept.split("\n\n");
    kept = events.pop();
    for (const event of events) {
      if (event.startsWith("data: ")) show(JSON.parse(event.slice(6)));
    }
  }
}

function over() {
  set("footer", `The run is over, and so is its page's server. See it again with: shoal dashboard ${facts.run}`);
  $("footer").dataset.over = "true";
}

// Showing ----------------------------------------------------------------------------------------------

function notice(text, kind = "") {
  $("notice").hidden = !text;
  $("notice").dataset.kind = kind;
  set("notice", text);
}

// Whether a drawing has to be made. The browser may share its cores with the training.
function isNew(id, ...shown) {
  const key = [innerWidth, ...shown].join();
  if (drawn.get(id) === key) return false;
  drawn.set(id, key);
  return true;
}

function show(news) {
  showRuns(news.runs, news.facts);
  last = news;
  facts = news.facts;
  if (document.hidden && !OVER.includes(facts?.state)) return;
  $("main").hidden = !facts;
  if (!facts) return notice("No runs on this machine. Start one with: shoal run -n 4 train.py");
  const told = facts.text ? facts.text[0].toUpperCase() + facts.text.slice(1) : "";
  notice(told && !/[.!?]$/.test(told) ? `${told}.` : told, { finished: "good", "ended early": "bad", gone: "bad" }[facts.state] || "");
  $("state").dataset.state = facts.state;
  set("state", facts.state);
  const about = [facts.script, facts.strategy, facts.backend, facts.pieces ? `${facts.pieces} pieces` : "", facts.uptime ? duration(facts.uptime) : ""];
  set("about", about.filter(Boolean).join(" · "));
  const title = [facts.state, facts.script || facts.run, "Shoal"].join(" · ");
  if (document.title !== title) document.title = title;
  showTiles();
  showCharts();
  showMembers();
  showFindings();
  showLines("story", facts.story, "Nothing yet.", true);
  showLines("checkpoints", facts.checkpoints, "None was written.", false);
  $("timeline-card").hidden = !facts.timeline;
  if (facts.timeline) {
    showTimeline();
  }
  set("footer", facts.logs ? `Logs: ${facts.logs}` : "");
}

function showTimeline() {
  const { first, last, seconds } = facts.timeline;
  // The largest of the drawings, and nobody reads it faster than that.
  const second = OVER.includes(facts.state) ? "over" : Math.floor(Date.now() / (4 * AGAIN));
  if (drawn.get("timeline-at") === `${facts.run} ${second}` || !isNew("timeline", facts.run, first, last, seconds)) return;
  drawn.set("timeline-at", `${facts.run} ${second}`);
  set("timeline-note", `step ${number(first)} to ${number(last)}, all workers on one clock`);
  timeline($("timeline"), facts.timeline);
}

function showRuns(runs, now) {
  const list = $("runs"), names = runs.map((run) => `${run.run}${run.is_alive ? "" : " (over)"}`);
  if (list.dataset.names !== names.join()) {
    list.dataset.names = names.join();
    list.replaceChildren(...runs.map((run, i) => node("option", { value: run.run }, names[i])).reverse());
  }
  if (now) list.value = now.run;
}

function duration(seconds) {
  const minutes = Math.floor(seconds / 60);
  const pad = (value) => String(Math.floor(value)).padStart(2, "0");
  return `${Math.floor(minutes / 60)}:${pad(minutes % 60)}:${pad(seconds % 60)}`;
}

function showTiles() {
  const { figures, chart, members, state } = facts, isOver = OVER.includes(state);
  const rates = chart.samples_per_second, best = Math.max(0, ...rates);
  const mean = rates.reduce((sum, rate) => sum + rate, 0) / (rates.length || 1);
  set("rate", number(isOver ? mean : figures.samples_per_second));
  set("rate-note", rates.length ? (isOver ? "on average" : `at most ${number(best)}`) : "");
  const name = "loss" in chart.logs ? "loss" : Object.keys(chart.logs)[0];
  const values = name ? chart.logs[name] : [];
  set("loss", name ? precise(values.at(-1)) : "–");
  set("loss-note", values.length ? `from ${precise(values.find((value) => value !== null))}` : "");
  set("step", number(figures.step));
  set("step-note", facts.checkpoints.length ? `checkpoint at ${number(facts.checkpoints[0].step ?? 0)}` : "");
  const coming = members.filter((one) => one.role === "worker" && ["starting", "joined", "ready"].includes(one.state)).length;
  set("workers", coming ? `${figures.workers} of ${figures.workers + coming}` : String(figures.workers));
  set("workers-note", figures.losses ? `${figures.losses} lost, survived` : "none lost");
  $("workers-note").dataset.kind = figures.losses ? "bad" : "";
  const share = figures.shares.computing;
  set("computing", share ? `${number(100 * share)} %` : "–");
  const next = USES.filter((use) => use !== "computing").sort((a, b) => (figures.shares[b] || 0) - (figures.shares[a] || 0))[0];
  set("computing-note", figures.shares[next] >= 0.005 ? `${number(100 * figures.shares[next])} % ${next}` : "");
}

function showCharts() {
  const { chart, story } = facts;
  const marks = story.filter((event) => event.kind === "trouble" && / going on with /.test(event.text)).map((event) => event.at);
  const points = [facts.run, chart.at.length, chart.at.at(-1), marks.length];
  if (isNew("rate-chart", ...points)) lines($("rate-chart"), chart.at, [{ name: "samples/s", values: chart.samples_per_second, css: "rate", area: true }], { zero: true, marks, show: (value) => number(value) });
  const names = Object.keys(chart.logs).filter((name) => !name.startsWith("val_"));
  if (!names.includes(log)) log = names.includes("loss") ? "loss" : names[0] ?? null;
  const buttons = $("log-names");
  if (buttons.dataset.names !== names.join()) {
    buttons.dataset.names = names.join();
    buttons.replaceChildren(...(names.length > 1 ? names : []).map((name) => node("button", { type: "button", "data-name": name }, name)));
  }
  for (const button of buttons.children) button.setAttribute("aria-pressed", String(button.dataset.name === log));
  set("log-title", log ? log[0].toUpperCase() + log.slice(1).replaceAll("_", " ") : "Loss");
  const both = log ? [log, `val_${log}`].filter((name) => name in chart.logs) : [];
  if (isNew("log-chart", ...points, ...both)) lines($("log-chart"), chart.at, both.map((name, i) => ({ name, values: chart.logs[name], css: `s${i}` })), { marks });
}

const ORDER = ["training", "serving", "ready", "joined", "starting", "finished", "ended", "lost"];

function showMembers() {
  const shown = facts.members.filter((one) => one.role !== "coordinator");
  shown.sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state));
  const box = $("members"), rows = new Map([...box.children].map((row) => [row.dataset.id, row]));
  const isLive = !OVER.includes(facts.state);
  const made = shown.map((one) => showMember(rows.get(one.id) || member(one.id), one, isLive));
  if (made.some((row, i) => box.children[i] !== row) || box.children.length !== made.length) box.replaceChildren(...made);
  $("controls").hidden = !isLive;
  const now = shown.filter((one) => one.role === "worker" && one.state === "training").length;
  if (wanted === null || !isLive) set("wanted", `${now} workers`);
  $("scale").disabled = wanted === null || wanted === now;
}

function member(id) {
  const bar = node("span", { class: "bar" }, ...USES.map((use) => node("i", { class: use })));
  const drain = node("button", { type: "button", title: "Let this worker leave after its step" }, "drain");
  drain.onclick = () => {
    if (!drain.hasAttribute("data-sure")) {
      drain.setAttribute("data-sure", "");
      drain.textContent = "sure?";
      setTimeout(() => { drain.removeAttribute("data-sure"); drain.textContent = "drain"; }, 3000);
    } else order("drain", { run: facts.run, member: id });
  };
  const cells = ["status", "step number", "", "rate-of number", "memory number soft", "doing soft"].map((css) => node("span", { class: css }));
  cells[2] = bar;
  return node("div", { class: "member", "data-id": id }, node("span", { class: "id" }, id), ...cells, drain);
}

function showMember(row, one, isLive) {
  const [id, status, step, bar, rate, memory, doing, drain] = row.children;
  const put = (cell, text) => { if (cell.textContent !== text) cell.textContent = text; };
  const entitle = (cell, text) => { if (cell.title !== text) cell.title = text; };
  if (row.dataset.state !== one.state) row.dataset.state = one.state;
  entitle(row, `${one.id} · ${one.host || "its host is not known yet"} · pid ${one.pid}`);
  put(status, one.state);
  put(step, one.step ? number(one.step) : "");
  put(rate, one.state === "training" && one.samples_per_second ? `${number(one.samples_per_second)}/s` : "");
  put(memory, one.memory ? `${number(one.memory / 1e6)} MB` : "");
  const isHere = one.state === "training" || one.state === "serving";
  const isStale = isHere && typeof one.staleness === "number";
  put(doing, isHere || one.state === "lost" ? `${one.phase}${isStale ? `, ${one.staleness.toFixed(1)} stale` : ""}` : "");
  entitle(doing, isStale ? `${one.doing}; its updates' weights lacked ${one.staleness.toFixed(1)} updates of another worker, on average` : one.doing);
  [...bar.children].forEach((part, i) => {
    const share = one.state === "lost" ? 0 : one.shares[USES[i]] || 0;
    const width = `${(100 * share).toFixed(1)}%`;
    if (part.style.width !== width) part.style.width = width;
    entitle(part, `${USES[i]} ${number(100 * share)} %`);
  });
  drain.hidden = !isLive || one.role !== "worker" || one.state !== "training";
  return row;
}

function showFindings() {
  const fine = facts.figures.step ? "Nothing stands out." : "It has not trained yet.";
  if (!isNew("findings", fine, ...facts.findings.flatMap((finding) => [finding.what, finding.advice]))) return;
  const made = facts.findings.map((finding) => node("li", {}, node("b", {}, ...prose(`${finding.what[0].toUpperCase()}${finding.what.slice(1)}.`)), node("p", {}, ...prose(finding.advice))));
  $("findings").replaceChildren(...(made.length ? made : [node("li", { class: "fine empty" }, fine)]));
}

// What stands between backticks is code.
function prose(text) {
  return text.split("`").map((part, i) => (i % 2 ? node("code", {}, part) : part));
}

function showLines(id, events, none, kinds) {
  const list = $(id), newest = events.length ? `${events[0].at} ${events.length}` : "";
  if (list.dataset.newest === newest) return; // whoever reads is not disturbed
  list.dataset.newest = newest;
  const made = events.map((event) => node("li", { "data-kind": event.kind }, node("time", {}, clock(event.at)), ...(kinds ? [node("span", { class: "kind" }, event.kind)] : []),
    node("span", {}, `${kinds && typeof event.step === "number" ? `step ${number(event.step)}: ` : ""}${event.text}`)));
  list.replaceChildren(...(made.length ? made : [node("li", { class: "none" }, none)]));
}

// Asking -----------------------------------------------------------------------------------------------

async function order(what, body) {
  const answer = $("answer");
  try {
    const told = await fetch(`/api/${what}`, { method: "POST", headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" }, body: JSON.stringify(body) });
    answer.dataset.kind = told.ok ? "" : "bad";
    answer.textContent = await told.text();
  } catch {
    answer.dataset.kind = "bad";
    answer.textContent = "The page's server does not answer.";
  }
}

function step(by) {
  const now = facts.members.filter((one) => one.role === "worker" && one.state === "training").length;
  wanted = Math.max(1, (wanted ?? now) + by);
  set("wanted", wanted === 1 ? "1 worker" : `${wanted} workers`);
  $("scale").disabled = wanted === now;
}

$("fewer").onclick = () => step(-1);
$("more").onclick = () => step(1);
$("scale").onclick = () => { order("scale", { run: facts.run, workers: wanted }); wanted = null; };
$("checkpoint").onclick = () => order("checkpoint", { run: facts.run });
$("log-names").onclick = (event) => { log = event.target.dataset.name ?? log; showCharts(); };
$("runs").onchange = (event) => {
  chosen = event.target.value;
  wanted = null;
  hearing?.abort();
};
$("legend").replaceChildren(...USES.map((use) => node("span", {}, node("i", { class: use }), use)));
document.addEventListener("visibilitychange", () => { if (last && !document.hidden) show(last); });
addEventListener("resize", () => { if (facts) { showCharts(); if (facts.timeline) { drawn.delete("timeline-at"); showTimeline(); } } });
hear();
