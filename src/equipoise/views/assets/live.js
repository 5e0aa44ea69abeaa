// The live page: asks for what is new since its cursor, keeps it, and shows it. Texts of others become text nodes, nothing else.
import { digits, draw, groups, logged, measuredPass, ordered, share, trail } from "./live_plots.js";

const AT_FIRST = 12; // runs that are drawn until somebody chooses
const PACE = 1000; // milliseconds between two drawings
const ALERTS = 4; // shown at once; the others on request
const state = { cursor: "", now: 0, heard: 0, runs: new Map(), series: new Map(), roles: new Map(), pass: null, chosen: [null, null], open: null };
const picked = new Map(); // run → drawn or not, by somebody's choice
const $ = (id) => document.getElementById(id);

function el(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "on") for (const [event, call] of Object.entries(value)) node.addEventListener(event, call);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function many(n, one) {
  return `${n} ${n === 1 ? one : `${one}s`}`;
}

// --- what is new

let asking = false, wanted = false;

async function ask() {
  if (asking) { wanted = true; return; }
  asking = true;
  try {
    do {
      wanted = false;
      const also = state.chosen.filter((number) => number !== null);
      const told = await get({ after: state.cursor, ...(also.length ? { also: also.join(",") } : {}) });
      take(told);
      wanted = wanted || told.more;
    } while (wanted);
    say();
  } catch (problem) {
    say(problem.message);
  } finally {
    asking = false;
  }
}

async function get(query) {
  const answer = await fetch(`/state?${new URLSearchParams(query)}`).catch(() => null);
  if (answer === null) throw new Error("no connection: is equipoise dash still running?");
  if (!answer.ok) throw new Error((await answer.text()).trim().slice(0, 200));
  return answer.json();
}

function take(told) {
  if (told.whole) {
    for (const held of [state.runs, state.series, state.roles, rows, picked]) held.clear();
    $("runs").replaceChildren();
    state.chosen = [null, null];
  }
  for (const one of told.series || []) {
    state.series.set(one.id, one);
    if (one.role) state.roles.set(one.name, one.id);
  }
  for (const block of told.runs) takeRun(block);
  state.cursor = told.cursor; state.now = told.now; state.heard = Date.now(); state.pass = told.pass;
  $("left-out").hidden = !told.left_out;
  $("left-out").textContent = told.left_out || "";
  if (told.series) offerMetrics();
  if (told.runs.length || told.whole) later();
}

function takeRun(block) {
  const run = state.runs.get(block.id) || { id: block.id, head: null, judged: null, curves: new Map() };
  state.runs.set(block.id, run);
  if (block.again) run.curves.clear();
  run.head = block.head || run.head;
  run.judged = block.judged || run.judged;
  takePoints(run, block.points);
}

function takePoints(run, points = []) {
  for (const [number, steps, values] of points) {
    const curve = run.curves.get(number) || { steps: [], values: [], mixed: false };
    run.curves.set(number, curve);
    for (let i = 0; i < steps.length; i += 1) {
      curve.mixed = curve.mixed || (curve.steps.length > 0 && steps[i] <= curve.steps.at(-1));
      curve.steps.push(steps[i]); curve.values.push(values[i]);
    }
  }
}

async function choose(place, number) {
  state.chosen[place] = number;
  let after = "";
  try {
    do { // the whole curve of this metric; from now on `also` brings what is new
      const told = await get({ only: number, after });
      for (const block of told.runs) if (state.runs.has(block.id)) takePoints(state.runs.get(block.id), block.points);
      after = told.more ? told.cursor : "";
    } while (after);
  } catch (problem) { say(problem.message); }
  later();
}

// --- drawing

let due = null, drawnAt = 0;

function later() {
  if (due !== null) return;
  due = setTimeout(() => { due = null; drawnAt = Date.now(); show(); }, Math.max(0, drawnAt + PACE - Date.now()));
}

const shownRuns = () => [...state.runs.values()].filter((run) => run.head);

function drawn() {
  const runs = shownRuns();
  const recent = [...runs].sort((a, b) => (b.head.written || 0) - (a.head.written || 0)).slice(0, AT_FIRST).map((run) => run.id);
  return runs.filter((run) => (picked.has(run.id) ? picked.get(run.id) : recent.includes(run.id)));
}

const curve = (run, role) => run.curves.get(state.roles.get(role));

const PANELS = [
  { title: "Entropy", ask: "Is exploration being spent?", y: "entropy per token (nats)", role: "entropy",
    empty: "No entropy is logged in the runs that are drawn.", traces: (runs) => runs.map((run) => logged(run, curve(run, "entropy"))) },
  { title: "Reward", ask: "For what?", y: "mean reward", role: "reward_mean",
    empty: "No reward is logged in the runs that are drawn.", traces: (runs) => runs.map((run) => logged(run, curve(run, "reward_mean"))) },
  { title: "Groups without a gradient", ask: "Is there still something to learn from?", y: "share of groups with equal rewards", role: "group_zero_std_frac", percent: "y",
    empty: "Needs rollouts with rewards and group ids, or frac_reward_zero_std in the log.",
    traces: (runs) => [...runs.map((run) => logged(run, curve(run, "group_zero_std_frac"))), ...runs.map(groups)] },
  { title: "Frontier", ask: "Sharper at the price of breadth?", x: "pass@1", y: () => `pass@${state.pass ?? "k"}`, percent: "xy",
    empty: "No evaluation with pass@1 and a larger pass@k yet.", note: () => "lines: logged evaluations, the last one large; diamonds: measured with 95% intervals",
    traces: (runs) => runs.flatMap((run) => [trail(run, curve(run, "pass@1"), curve(run, `pass@${state.pass}`), state.pass), measuredPass(run, state.pass)]) },
  { title: "Any metric", choice: 0, empty: "Choose a metric.", traces: (runs) => runs.map((run) => logged(run, run.curves.get(state.chosen[0]))) },
  { title: "Another metric", choice: 1, empty: "Choose a metric.", traces: (runs) => runs.map((run) => logged(run, run.curves.get(state.chosen[1]))) },
];

function buildPanels() {
  for (const panel of PANELS) {
    panel.noteNode = el("p", { class: "note" });
    panel.where = el("div", { class: "plot empty", "data-empty": panel.empty, role: "group", "aria-label": `plot: ${panel.title}; the table above has its last values` });
    const head = [el("h2", {}, panel.title)];
    if (panel.choice !== undefined) {
      panel.select = el("select", { "aria-label": panel.title, on: { change: () => choose(panel.choice, Number(panel.select.value)) } });
      head.push(panel.select);
    }
    $("plots").append(el("article", { class: "card" }, el("div", { class: "row" }, ...head), panel.noteNode, panel.where));
  }
}

function offerMetrics() {
  const known = [...state.series.values()].filter((one) => !one.role);
  const first = ["length", "completions/mean_length", "response_length/mean", "kl_to_sampler", "kl", "grad_norm", "loss"];
  const order = [...known].sort((a, b) => (a.name < b.name ? -1 : 1));
  for (const panel of PANELS.filter((one) => one.select)) {
    const held = state.chosen[panel.choice];
    panel.select.replaceChildren(...order.map((one) => el("option", { value: one.id }, one.name)));
    if (held !== null) { panel.select.value = held; continue; }
    const good = first.map((name) => known.find((one) => one.name === name)).filter(Boolean);
    const pick = good[panel.choice] || order[panel.choice] || null;
    if (pick) { panel.select.value = pick.id; choose(panel.choice, pick.id); }
  }
}

function show() {
  const runs = drawn();
  showRuns(runs);
  showAlerts();
  showDetail();
  if (!window.Plotly) { later(); return; }
  for (const panel of PANELS) {
    const metric = panel.choice === undefined ? null : state.series.get(state.chosen[panel.choice]);
    const y = metric ? metric.label : typeof panel.y === "function" ? panel.y() : panel.y || "";
    draw(panel.where, panel.traces(runs), { x: panel.x || "step", y, percent: panel.percent });
    const keys = new Set(runs.map((run) => run.head.keys[panel.role]).filter(Boolean));
    const told = panel.note ? panel.note() : keys.size ? `lines: logged as ${[...keys].join(", ")}` : "";
    const more = panel.role === "group_zero_std_frac" ? `${told ? `${told}; ` : ""}marks: measured from the rollouts, 95% intervals` : told;
    panel.noteNode.textContent = [panel.ask, metric ? "as logged" : more].filter(Boolean).join(" ");
  }
}

// --- the table, the alerts, one run

const MARK = { failing: "✗ failing", watch: "! watch", ok: "✓ ok", unclear: "? unclear", info: "·" };
const rows = new Map();

function set(node, text) { if (node.textContent !== text) node.textContent = text; }

function swatch(look) {
  const dashes = { solid: "none", dash: "6 3", dot: "2 3", dashdot: "6 3 2 3", longdash: "10 3", longdashdot: "10 3 2 3" };
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  for (const [name, value] of Object.entries({ width: 30, height: 10, "aria-hidden": "true" })) svg.setAttribute(name, value);
  for (const [name, value] of Object.entries({ x1: 0, y1: 5, x2: 30, y2: 5, stroke: look.colour, "stroke-width": 3, "stroke-dasharray": dashes[look.dash] })) line.setAttribute(name, value);
  svg.append(line);
  return svg;
}

function rowOf(run) {
  if (rows.has(run.id)) return rows.get(run.id);
  const row = { box: el("input", { type: "checkbox", "aria-label": `draw ${run.head.name}`, on: { change: () => { picked.set(run.id, row.box.checked); later(); } } }) };
  const open = el("button", { class: "name", type: "button", on: { click: () => { state.open = run.id; showDetail(true); } } }, run.head.name);
  row.cells = ["step", "entropy", "reward", "dead", "verdict", "left", "written"].map(() => el("td"));
  row.node = el("tr", { class: "new" }, el("td", {}, el("label", { class: "draw" }, row.box, swatch(run.head.look))), el("td", { class: "wide" }, open), ...row.cells);
  rows.set(run.id, row);
  $("runs").append(row.node);
  return row;
}

function last(run, role) {
  const found = curve(run, role);
  return found && found.steps.length ? ordered(found).values.at(-1) : null;
}

function showRuns(visible) {
  const ids = new Set(visible.map((run) => run.id));
  for (const [id, row] of rows) if (!state.runs.has(id)) { row.node.remove(); rows.delete(id); }
  for (const run of shownRuns()) {
    const row = rowOf(run), { head, judged } = run, dead = judged && judged.groups.at(-1);
    const [step, entropy, reward, deadGroups, verdict] = row.cells;
    row.box.checked = ids.has(run.id);
    row.node.classList.toggle("chosen", state.open === run.id);
    set(step, head.step === null ? "–" : head.planned ? `${head.step} / ${head.planned}` : `${head.step}`);
    set(entropy, digits(last(run, "entropy")));
    set(reward, digits(last(run, "reward_mean")));
    set(deadGroups, dead ? `${share(dead[2])} [${share(dead[3])}, ${share(dead[4])}]` : "–");
    const worst = alertsOf(run)[0];
    verdict.className = `wide ${worst ? worst.severity : judged && judged.verdict === "healthy" ? "ok" : ""}`;
    set(verdict, judged ? `${judged.verdict}${worst ? `: ${MARK[worst.severity][0]} ${worst.name}` : ""}` : head.reading ? "reading rollouts …" : "not judged yet");
  }
  tellAges();
}

function tellAges() {
  const now = state.now + (Date.now() - state.heard) / 1000;
  for (const run of shownRuns()) {
    const row = rows.get(run.id), { left, written, gone, step, planned } = run.head;
    if (!row) continue;
    const age = written ? Math.max(0, now - written) : null;
    // Twenty steps' time without a word: who can tell when it will end?
    const silent = age > Math.max(120, left ? (20 * left.value) / Math.max(1, planned - step) : 600);
    set(row.cells[5], planned && step >= planned ? "done" : left && !silent && !gone ? seconds(left.value) : "–");
    set(row.cells[6], gone ? "folder is gone" : age === null ? "–" : `${seconds(age)} ago${silent && !(planned && step >= planned) ? ", silent" : ""}`);
  }
}

function seconds(value) {
  if (value < 90) return `${Math.round(value)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${(value / 3600).toFixed(1)} h` : `${Math.round(value / 86400)} days`;
}

const alertsOf = (run) => (run.judged ? run.judged.findings.filter((finding) => ["failing", "watch"].includes(finding.severity)) : []);

function interval(finding) {
  return `${finding.interval ? `95% interval ${finding.interval}` : "no interval"}, n = ${finding.n}`;
}

function showAlerts() {
  const found = shownRuns().flatMap((run) => alertsOf(run).map((finding, rank) => ({ run, finding, rank })));
  // The gravest first, and of those each run's first before any run's second.
  found.sort((a, b) => (a.finding.severity !== b.finding.severity ? (a.finding.severity === "failing" ? -1 : 1) : a.rank - b.rank || a.run.id - b.run.id));
  const lines = found.map(alertLine);
  fill($("alerts"), lines.slice(0, ALERTS));
  const rest = lines.slice(ALERTS), more = $("more-alerts");
  more.hidden = !rest.length;
  set(more.querySelector("summary"), `${rest.length} more: ${rest.filter((line) => line.className === "failing").length} failing, ${rest.filter((line) => line.className === "watch").length} to watch`);
  fill(more.querySelector("ul"), rest);
  quiet(found);
}

function alertLine({ run, finding }) {
  const from = finding.at.source === "log" ? "from the log" : `rollouts up to step ${run.judged.step ?? "–"}`;
  return el("li", { class: finding.severity },
    el("b", {}, MARK[finding.severity]), " ", el("button", { class: "name", type: "button", on: { click: () => { state.open = run.id; showDetail(true); } } }, run.head.name),
    ` ${finding.reading} `, el("span", { class: "soft" }, `(${interval(finding)}; ${from})`));
}

function fill(list, lines) { // only what changed: a reader's place and focus stay
  const same = list.children.length === lines.length && lines.every((line, i) => line.textContent === list.children[i].textContent && line.className === list.children[i].className);
  if (!same) list.replaceChildren(...lines);
}

function quiet(found) {
  const runs = shownRuns(), judged = runs.filter((run) => run.judged).length;
  const text = !runs.length ? "No run is here yet: the page shows one as soon as its folder appears."
    : judged < runs.length ? `Judged so far: ${judged} of ${many(runs.length, "run")}.` : found.length ? "" : "No rule fails in any run.";
  set($("quiet"), text);
  $("quiet").hidden = !text;
}

let told = null;

function showDetail(move = false) {
  const run = state.runs.get(state.open);
  $("detail").hidden = !run;
  if (!run) return;
  const stamp = JSON.stringify([run.id, run.judged, run.head.notes]);
  if (stamp !== told) {
    told = stamp;
    set($("detail-title"), run.head.name);
    $("detail-body").replaceChildren(...detail(run));
  }
  if (move) { $("detail").scrollIntoView({ block: "start" }); $("detail-title").focus({ preventScroll: true }); later(); }
}

function detail({ head, judged }) {
  const parts = [el("p", { class: "note" }, [head.source && `written by ${head.source}`, head.model && `model ${head.model}`, head.left && head.left.value > 0 && `time left: ${head.left.how}`].filter(Boolean).join("; "))];
  if (judged) {
    const sure = judged.confidence === null ? "" : `, confidence ${judged.confidence.toFixed(2)}`;
    parts.push(el("p", {}, el("b", {}, `${judged.verdict}${sure}`), ` for ${judged.use}: ${many(judged.n_prompts, "problem")}, ${many(judged.n_rollouts, "rollout")} up to step ${judged.step ?? "–"}`));
    parts.push(el("p", {}, judged.next));
    const lines = judged.findings.map((finding) => el("tr", { title: finding.how },
      el("td", { class: finding.severity }, MARK[finding.severity]), el("td", { class: "wide" }, finding.reading), el("td", {}, finding.interval || "no interval"),
      el("td", {}, `${finding.n ?? "–"}`), el("td", {}, where(finding.at))));
    const heads = ["", "estimate", "95% interval", "n", "where"].map((text) => el("th", { scope: "col" }, text));
    parts.push(el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "estimates" }, el("table", {}, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...lines))));
    if (judged.missing.length) parts.push(el("h3", {}, "Not measured"), el("ul", {}, ...judged.missing.map((line) => el("li", {}, line))));
  }
  if (head.notes.length) parts.push(el("h3", {}, "Notes"), el("ul", {}, ...head.notes.map((line) => el("li", {}, line))));
  return parts;
}

function where(at) {
  return Object.entries(at).filter(([, value]) => value !== null).map(([name, value]) => `${name} ${Array.isArray(value) ? value.join("–") : value}`).join(", ");
}

function say(problem = null) {
  const runs = shownRuns().length;
  $("status").classList.toggle("lost", problem !== null);
  set($("status"), problem ?? `following ${runs} run${runs === 1 ? "" : "s"}`);
}

// --- start

buildPanels();
for (const [id, value] of [["all", true], ["none", false]]) {
  $(id).addEventListener("click", () => { for (const run of shownRuns()) picked.set(run.id, value); later(); });
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", later);
const events = new EventSource("/events");
events.addEventListener("message", (event) => { if (event.data !== state.cursor) ask(); else say(); });
events.addEventListener("error", () => say("no connection: is equipoise dash still running?"));
setInterval(tellAges, 5000);
setInterval(ask, 30000); // in case a proxy swallows the stream of events
ask();
