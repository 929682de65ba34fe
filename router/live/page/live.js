// The live page: reads the router's event stream and draws it. Whatever comes over the wire is put into the page as
// text, never as markup. Nothing is kept but what is shown, within the limits below.
"use strict";

const LIMITS = {
  generations: 30, // Kept; the oldest go first.
  rounds: 3000, // Kept of one generation, with their trees.
  waiting: 5000, // Updates that wait while the page is paused.
  silenceMs: 8000, // The router says something every second, or it is lost.
  bufferChars: 1 << 22, // Of one update that does not end.
};
const RETRY_SECONDS = [1, 2, 4, 8, 15];
const RATE_ROUNDS = 16; // Drafted rounds that the acceptance rate over time looks back on.

const REASONS = {
  auto: "the router chose it by the highest throughput it predicts.",
  explore: "the router explores it, because it has too few samples of it.",
  refresh: "the router tries it again, because it has not been used for a long time.",
  request: "the request names it.",
  tenant: "it is the tenant's own drafter.",
  canary: "it is on trial for a share of the tenant's requests.",
  off: "speculation is off for the request or its tenant.",
  draining: "its drafter accepts no new sessions.",
  none: "neither the request nor its tenant names a drafter.",
};

const $ = (id) => document.getElementById(id);
const model = {
  hello: null,
  generations: new Map(), // By instance and number, oldest first.
  selected: null, // Key of the generation that is shown.
  round: null, // Index of the round that is shown; null: the newest.
  follow: true,
  paused: false,
  waiting: [],
  dropped: 0, // Of `waiting`.
  missed: 0, // Updates the router skipped for this browser.
  tenants: null,
};

// --- Small things ---

function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function drawing(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const percent = (share) => `${Math.round(100 * share)} %`;
const fixed = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : "–");
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const drafterName = (name) => name || "no drafter";

// A token as it can be seen: blanks and line ends have signs.
function visible(text, limit = 16) {
  const shown = text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/\r/g, "␍").replace(/ /g, "␣");
  const characters = [...shown];
  if (characters.length === 0) return "∅";
  return characters.length > limit ? characters.slice(0, limit - 1).join("") + "…" : shown;
}

// --- The stream ---

let abort = null;
let lastEventId = "";
let failures = 0;
let retryTimer = 0;

function setStatus(state, text) {
  const paused = state === "live" && model.paused;
  $("status").dataset.state = paused ? "paused" : state;
  $("status-text").textContent = text;
  $("retry").hidden = state !== "broken";
}

function showLive() {
  if (model.hello === null) return;
  if (model.paused) {
    const lost = model.dropped > 0 ? `, ${model.dropped} more were dropped` : "";
    setStatus("live", `Paused; ${plural(model.waiting.length, "update")} waiting${lost}`);
    return;
  }
  const which = model.hello.all ? "all requests" : "requests that ask to be shown";
  setStatus("live", `Live: ${which}${model.hello.prompts ? ", with prompts" : ""}`);
}

// One server-sent event at a time, from pieces that end anywhere.
class EventParser {
  constructor(onEvent) {
    this.onEvent = onEvent;
    this.buffer = "";
  }
  push(piece) {
    this.buffer += piece;
    if (this.buffer.length > LIMITS.bufferChars) throw new Error("the router sent an update that does not end");
    for (let end = this.buffer.indexOf("\n\n"); end >= 0; end = this.buffer.indexOf("\n\n")) {
      this.parse(this.buffer.slice(0, end));
      this.buffer = this.buffer.slice(end + 2);
    }
  }
  parse(block) {
    let type = "message";
    let data = "";
    for (const line of block.split("\n")) {
      const colon = line.indexOf(":");
      const value = line.slice(colon + 1).replace(/^ /, "");
      if (line.startsWith("event:")) type = value;
      else if (line.startsWith("data:")) data += value;
      else if (line.startsWith("id:")) lastEventId = value;
    }
    let content = null;
    try {
      content = JSON.parse(data);
    } catch {
      throw new Error("the router sent something that this page cannot read");
    }
    this.onEvent(type, content);
  }
}

async function readStream(signal, heard) {
  const headers = { Accept: "text/event-stream" };
  if (lastEventId) headers["Last-Event-ID"] = lastEventId;
  const response = await fetch("events", { headers, cache: "no-store", signal });
  if (!response.ok) {
    const words = (await response.text()).trim().slice(0, 300);
    throw new Error(`the router refused (${response.status}): ${words || response.statusText}`);
  }
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser(receive);
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the stream broke off");
    heard();
    parser.push(decoder.decode(value, { stream: true }));
  }
}

async function connect() {
  clearTimeout(retryTimer);
  if (abort !== null) abort.abort();
  const controller = (abort = new AbortController());
  setStatus("connecting", "Connecting to the router");
  let silent = false;
  let watchdog = 0;
  const heard = () => {
    clearTimeout(watchdog);
    watchdog = setTimeout(() => {
      silent = true;
      controller.abort();
    }, LIMITS.silenceMs);
  };
  heard();
  try {
    await readStream(controller.signal, heard);
  } catch (error) {
    if (controller !== abort) return; // Another attempt has taken over.
    controller.abort();
    let why = error.message;
    if (silent) why = `the router has said nothing for ${LIMITS.silenceMs / 1000} s`;
    else if (error instanceof TypeError) why = "the router cannot be reached";
    onBroken(why);
  } finally {
    clearTimeout(watchdog);
  }
}

function onBroken(why) {
  for (const generation of model.generations.values()) {
    if (generation.end === null) generation.broken = true;
  }
  invalidate();
  const seconds = RETRY_SECONDS[Math.min(failures, RETRY_SECONDS.length - 1)];
  ++failures;
  // Said once: it is read aloud to those who listen.
  setStatus("broken", `Stream broken: ${why}. Trying again in ${seconds} s.`);
  retryTimer = setTimeout(connect, 1000 * seconds);
}

function receive(type, content) {
  failures = 0;
  if (type === "hello") return onHello(content);
  if (type === "beat") return;
  if (type === "bye") throw new Error("the router is shutting down");
  if (!model.paused) {
    apply(type, content);
    return;
  }
  if (model.waiting.length >= LIMITS.waiting) {
    model.waiting.shift();
    ++model.dropped;
  }
  model.waiting.push([type, content]);
  showLive();
}

function onHello(hello) {
  const restarted = model.hello !== null && model.hello.instance !== hello.instance;
  for (const generation of model.generations.values()) {
    if (generation.instance !== hello.instance && generation.end === null) generation.lost = true;
    generation.broken = false;
  }
  model.hello = hello;
  if (restarted) tellNotice("The router was restarted. Only what this page shows is left of what it did before.");
  showLive();
  invalidate();
}

function tellNotice(text) {
  $("notice").textContent = text;
  $("notice").hidden = text === "";
}

// --- What is known ---

function keyOf(number) {
  return `${model.hello.instance}/${number}`;
}

function find(number) {
  const key = keyOf(number);
  let generation = model.generations.get(key);
  if (generation !== undefined) return generation;
  generation = {
    key,
    instance: model.hello.instance,
    start: null, // Unknown when it began before what this browser was told.
    maxTokens: 0,
    rounds: [],
    dropped: 0, // Rounds that are not kept any more.
    accepted: SOURCES.map(() => 0), // By who guessed.
    draftTokens: SOURCES.map(() => 0),
    drafted: 0,
    tokens: 0,
    notes: [],
    end: null,
    broken: false,
    lost: false,
  };
  model.generations.set(key, generation);
  for (const [old] of model.generations) {
    if (model.generations.size <= LIMITS.generations) break;
    if (old !== model.selected) model.generations.delete(old);
  }
  // What runs is watched to its end, or many requests at once would make the page jump.
  const watched = current();
  if (watched === null || (model.follow && stateOf(watched) !== "running")) select(key);
  return generation;
}

function addRound(generation, round) {
  const before = generation.rounds.at(-1);
  if (before !== undefined && round.offset !== before.offset + before.tokens.length) {
    generation.notes.push("Some rounds did not arrive here: text is missing below.");
  } else if (before === undefined && round.offset > 0) {
    generation.notes.push(`What is shown begins at token ${round.offset}.`);
  }
  if (round.cut) generation.notes.push(`Round ${round.n + 1} is too large to be shown whole.`);
  round.accepted = round.tokens.filter((token) => token.a).length;
  generation.rounds.push(round);
  generation.tokens += round.tokens.length;
  if (round.kind !== "undrafted") ++generation.drafted;
  for (const source of SOURCES.keys()) {
    generation.accepted[source] += round.sources.accepted[source];
    generation.draftTokens[source] += round.sources.nodes[source];
  }
  if (generation.rounds.length > LIMITS.rounds) {
    generation.rounds.shift();
    ++generation.dropped;
  }
}

function apply(type, content) {
  switch (type) {
    case "start":
      find(content.g).start = content;
      break;
    case "started":
      find(content.g).maxTokens = content.max_tokens;
      break;
    case "round":
      addRound(find(content.g), content);
      break;
    case "note":
      find(content.g).notes.push(content.note);
      break;
    case "end":
      find(content.g).end = content;
      break;
    case "tenants":
      model.tenants = content;
      break;
    case "gap":
      model.missed += content.missed;
      for (const generation of model.generations.values()) {
        if (generation.end === null) generation.notes.push("Some updates could not be shown.");
      }
      tellNotice(
        `This browser was too slow, or away for too long: ${plural(model.missed, "update")} could not be shown.`,
      );
      break;
    default:
      break; // Of a newer router.
  }
  invalidate();
}

function select(key) {
  model.selected = key;
  model.round = null;
  invalidate();
}

const current = () => model.generations.get(model.selected) ?? null;

function shownRound(generation) {
  if (generation === null || generation.rounds.length === 0) return null;
  const last = generation.rounds.length - 1;
  return model.round === null ? last : Math.min(model.round, last);
}

function stateOf(generation) {
  if (generation.end !== null) return generation.end.code === "OK" ? "done" : `failed: ${generation.end.code}`;
  if (generation.lost) return "lost: the router was restarted";
  if (generation.broken) return "interrupted: the stream broke";
  return "running";
}

// --- Drawing, at most once a frame ---

let due = false;
function invalidate() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    draw();
  });
}

function draw() {
  const generation = current();
  const round = shownRound(generation);
  drawGenerations();
  drawOutput(generation, round);
  drawWhy(generation);
  drawChart(generation, round);
  drawRound(generation, round);
  drawTenants();
}

// What a part shows, so that it is drawn again only when that has changed: focus and scrolling stay where they are.
const drawn = new Map();
function changed(part, ...state) {
  const now = JSON.stringify(state);
  if (drawn.get(part) === now) return false;
  drawn.set(part, now);
  return true;
}

function drawGenerations() {
  const list = $("generations");
  $("nothing").hidden = model.generations.size > 0;
  if (model.hello !== null && model.generations.size === 0) {
    $("nothing").textContent = model.hello.all
      ? "None yet. The next request is shown as it arrives."
      : "None yet. This page shows requests that ask for it: tandem generate --live-page …";
  }
  const wanted = [...model.generations.values()].reverse();
  const keys = new Set(wanted.map((generation) => generation.key));
  for (const item of [...list.children]) if (!keys.has(item.dataset.key)) item.remove();
  wanted.forEach((generation, index) => {
    let item = [...list.children].find((child) => child.dataset.key === generation.key);
    if (item === undefined) {
      const button = element("button", { type: "button" }, element("b"), element("small"), element("small"));
      button.addEventListener("click", () => {
        setFollow(false);
        select(generation.key);
      });
      item = element("li", {}, button);
      item.dataset.key = generation.key;
    }
    if (list.children[index] !== item) list.insertBefore(item, list.children[index] ?? null);
    const [name, what, how] = item.firstChild.children;
    const start = generation.start;
    name.textContent = start === null ? "began before this page" : start.tenant;
    what.textContent = start === null ? "" : `${drafterName(start.drafter)} · ${visible(start.request_id, 12)}`;
    how.textContent = `${plural(generation.tokens, "token")} · ${stateOf(generation)}`;
    item.firstChild.setAttribute("aria-current", String(generation.key === model.selected));
  });
}

const shareOf = (accepted, drafted) => (drafted > 0 ? percent(accepted / drafted) : "–");

// Seconds from the first round to the last, by the verifier's clock.
function tokensPerSecond(generation) {
  const first = generation.rounds[0];
  const last = generation.rounds.at(-1);
  if (first === undefined || !(last.at > first.at) || generation.dropped > 0) return NaN;
  return (generation.tokens - first.tokens.length) / (last.at - first.at);
}

function figuresOf(generation) {
  const rounds = generation.rounds.length + generation.dropped;
  return [
    [String(generation.tokens), generation.maxTokens > 0 ? `of ${generation.maxTokens} tokens` : "tokens"],
    [String(rounds), "rounds"],
    [rounds > 0 ? fixed(generation.tokens / rounds, 2) : "–", "tokens/round"],
    [shareOf(generation.accepted[0], generation.draftTokens[0]), "of the drafter’s tokens accepted"],
    [shareOf(generation.accepted[1], generation.draftTokens[1]), "of the verifier’s own guesses"],
    ...(generation.draftTokens[2] > 0
      ? [[shareOf(generation.accepted[2], generation.draftTokens[2]), "of the tokens forced by the constraint"]]
      : []),
    ...(generation.draftTokens[3] > 0
      ? [[shareOf(generation.accepted[3], generation.draftTokens[3]), "of the request’s prediction"]]
      : []),
    [fixed(tokensPerSecond(generation), 0), "tokens/s"],
  ];
}

function drawOutput(generation, selected) {
  if (generation === null) return;
  const start = generation.start;
  const state = stateOf(generation);
  $("output-names").textContent =
    start === null
      ? `A generation that began before this page was opened; ${state}`
      : `${start.tenant}: ${drafterName(start.drafter)} drafts for ${start.model}; request ${start.request_id}; ${state}`;
  if (changed("figures", figuresOf(generation))) {
    $("figures").replaceChildren(
      ...figuresOf(generation).map(([value, name]) => element("li", {}, element("b", { textContent: value }), name)),
    );
  }
  const has_prompt = start !== null && start.prompt !== undefined;
  $("prompt-box").hidden = !has_prompt;
  if (has_prompt) $("prompt").textContent = (start.prompt_cut ? "…" : "") + start.prompt;
  drawText(generation, selected);
  drawNotes(generation);
}

// By who guessed, as the router numbers it: a drafter, the verifier by itself, the constraint, the request's prediction.
const SOURCES = ["", "local", "grammar", "prediction"];
const GUESSERS = ["a drafter", "the verifier", "the constraint", "the prediction"];
const SOURCE_MARKS = ["", "◦ ", "= ", "» "];

// As a class: accepted, also by whom it was guessed, or the target's own.
const kindOf = (token) => (token.a ? `accepted ${SOURCES[token.l] ?? ""}`.trim() : "bonus");

function tokenElement(token, number) {
  const span = element("span", { className: `token ${kindOf(token)}`, textContent: token.t });
  span.dataset.round = number;
  return span;
}

function drawText(generation, selected) {
  const text = $("text");
  if (text.dataset.key !== generation.key) {
    text.dataset.key = generation.key;
    text.dataset.next = "-1";
    text.replaceChildren();
  }
  const atEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 40;
  let next = Number(text.dataset.next);
  for (const round of generation.rounds) {
    if (round.n <= next) continue;
    text.append(...round.tokens.map((token) => tokenElement(token, round.n)));
    next = round.n;
  }
  text.dataset.next = String(next);
  if (generation.end !== null && text.querySelector(".tail") === null) {
    // What was held back belongs to the last tokens.
    const last = generation.rounds.at(-1)?.tokens.at(-1);
    const kind = last === undefined ? "" : kindOf(last);
    text.append(element("span", { className: `tail ${kind}`, textContent: generation.end.text }));
  }
  const number = selected === null ? -1 : generation.rounds[selected].n;
  if (text.dataset.selected !== `${generation.key} ${number}`) {
    for (const span of text.querySelectorAll(".selected")) span.classList.remove("selected");
    for (const span of text.querySelectorAll(`[data-round="${number}"]`)) span.classList.add("selected");
    text.dataset.selected = `${generation.key} ${number}`;
    const first = text.querySelector(".selected");
    // Within the box alone: the page itself stays.
    if (model.round !== null && first !== null) {
      text.scrollTop = first.offsetTop - text.offsetTop - text.clientHeight / 2;
    }
  }
  if (atEnd && model.round === null) text.scrollTop = text.scrollHeight;
}

function drawNotes(generation) {
  const notes = generation.notes.map((note) => [note, false]);
  const end = generation.end;
  if (end !== null && end.code === "OK") {
    notes.push([`Ended by: ${end.reason}.${end.cut ? " Its last text is too long to be shown in full." : ""}`, false]);
    if (end.drafter_lost) notes.push([`Its drafter went away: ${end.drafter_lost}`, true]);
  } else if (end !== null) {
    notes.push([`Failed with ${end.code}: ${end.message}`, true]);
  } else if (generation.lost || generation.broken) {
    notes.push([`This generation was ${stateOf(generation)}; it may go on unseen.`, true]);
  }
  if (!changed("notes", notes)) return;
  $("notes").replaceChildren(
    ...notes.map(([note, bad]) => element("li", { className: bad ? "problem-note" : "", textContent: note })),
  );
}

function table(columns, rows, caption) {
  const head = element("tr", {}, ...columns.map(([name, kind]) => element("th", { scope: "col", className: kind, textContent: name })));
  const body = rows.map(({ cells, className = "" }) =>
    element(
      "tr",
      { className },
      ...cells.map((cell, i) => {
        const node = element("td", { className: columns[i][1] });
        node.append(...(Array.isArray(cell) ? cell : [String(cell)]));
        return node;
      }),
    ),
  );
  return element("table", { "aria-label": caption }, element("thead", {}, head), element("tbody", {}, ...body));
}

function drawWhy(generation) {
  const start = generation === null ? null : generation.start;
  if (start === null || !changed("why", generation.key)) return;
  const measured = start.candidates.some((candidate) => candidate.tokens_per_second > 0);
  const perplexity = Math.exp(start.nats_per_token);
  $("why").replaceChildren(
    element("b", { textContent: drafterName(start.drafter) }),
    ` drafts: ${REASONS[start.reason] ?? start.reason} `,
    element("span", {
      className: "muted",
      textContent:
        `The prompt has ${plural(start.prompt_tokens, "token")}` +
        (start.features_fitted ? `, perplexity ${fixed(perplexity, 1)}.` : ".") +
        (start.window_policy ? ` Window policy: ${start.window_policy}.` : "") +
        (start.features_fitted ? "" : " The router has not learned from enough prompts yet.") +
        (measured ? "" : " Costs have not been measured yet."),
    }),
  );
  const rows = start.candidates.map((candidate) => ({
    className: candidate.chosen ? "chosen" : "",
    cells: [
      `${candidate.chosen ? "▶ " : ""}${candidate.drafter || "none"}`,
      candidate.acceptance === undefined
        ? "–"
        : [
            percent(candidate.acceptance),
            element("span", { className: "sub", textContent: `${percent(candidate.low)} to ${percent(candidate.high)}` }),
          ],
      candidate.window,
      candidate.tokens_per_second > 0 ? fixed(candidate.tokens_per_second, 0) : "–",
    ],
  }));
  const columns = [["Drafter", "name"], ["Acceptance", ""], ["Window", ""], ["Tokens/s", ""]];
  $("candidates").replaceChildren(table(columns, rows, "The router's predictions for each candidate"));
}

// --- The chart ---

function rateAt(rounds, index) {
  let nodes = 0;
  let accepted = 0;
  let seen = 0;
  for (let i = index; i >= 0 && seen < RATE_ROUNDS; --i) {
    if (rounds[i].kind === "undrafted") continue;
    ++seen;
    nodes += rounds[i].nodes;
    accepted += rounds[i].accepted;
  }
  return nodes === 0 ? null : accepted / nodes;
}

function axis(svg, x, top, bottom, right, low, high, name) {
  svg.append(
    drawing("path", { d: `M${x} ${top}H${right}M${x} ${bottom}H${right}`, class: "axis" }),
    drawing("text", { x: x - 6, y: top + 4, "text-anchor": "end" }, high),
    drawing("text", { x: x - 6, y: bottom + 4, "text-anchor": "end" }, low),
    drawing("text", { x: 0, y: (top + bottom) / 2 + 4 }, name),
  );
}

function drawChart(generation, selected) {
  const box = $("chart");
  const width = Math.max(box.clientWidth, 200);
  const rounds = generation === null ? [] : generation.rounds;
  if (!changed("chart", generation?.key, rounds.length, generation?.dropped, selected, width)) return;
  if (rounds.length === 0) {
    box.replaceChildren(element("p", { className: "muted", textContent: "No rounds yet." }));
    return;
  }
  const left = 74;
  const right = width - 4;
  const step = Math.max(7, Math.min(26, (right - left) / rounds.length));
  const room = Math.max(1, Math.floor((right - left) / step));
  let from = Math.max(0, rounds.length - room);
  if (selected < from) from = selected;
  const shown = rounds.slice(from, from + room);
  const deepest = Math.max(1, ...rounds.map((round) => round.window));
  const svg = drawing("svg", { width, height: 176, role: "img" });
  const bars = { top: 12, bottom: 92 };
  const rates = { top: 116, bottom: 166 };
  const barHeight = (count) => ((bars.bottom - bars.top) * count) / deepest;
  const marks = drawing("g");
  svg.append(marks);
  axis(svg, left, bars.top, bars.bottom, right, "0", String(deepest), "tokens");
  const shares = shown.map((_, i) => rateAt(rounds, from + i));
  // Wide trees have low rates: the axis ends above the highest.
  const top = [0.25, 0.5].find((end) => shares.every((share) => share === null || share <= end)) ?? 1;
  axis(svg, left, rates.top, rates.bottom, right, "0 %", percent(top), "rate");
  let line = "";
  shown.forEach((round, i) => {
    const x = left + i * step;
    const inner = { x: x + 1, width: Math.max(2, step - 3) };
    if (from + i === selected) {
      marks.append(
        drawing("rect", { class: "marker", x, y: 4, width: step, height: 168 }),
        drawing("path", { class: "marker-edge", d: `M${x} 4h${step}M${x} 172h${step}` }),
      );
    }
    if (round.kind === "undrafted") {
      svg.append(drawing("circle", { class: "bar-undrafted", cx: x + step / 2, cy: bars.bottom - 3, r: 2 }));
    } else {
      svg.append(
        drawing("rect", { class: "bar-accepted", ...inner, y: bars.bottom - barHeight(round.accepted), height: barHeight(round.accepted) }),
        drawing("rect", { class: "bar-window", ...inner, y: bars.bottom - barHeight(round.window), height: barHeight(round.window) }),
      );
    }
    const share = shares[i];
    if (share !== null) line += `${line ? "L" : "M"}${x + step / 2} ${rates.bottom - ((rates.bottom - rates.top) * share) / top}`;
    const title = `Round ${round.n + 1}: window ${round.window}, ${round.accepted} accepted`;
    const column = drawing("rect", { class: "column", x, y: 4, width: step, height: 168 }, drawing("title", {}, title));
    column.addEventListener("click", () => showRound(from + i));
    svg.append(column);
  });
  svg.append(drawing("path", { class: "rate-line", d: line, "pointer-events": "none" }));
  const rate = shares.at(-1);
  svg.setAttribute(
    "aria-label",
    `Rounds ${shown[0].n + 1} to ${shown.at(-1).n + 1}: windows up to ${deepest}` +
      (rate === null ? "" : `, acceptance rate at the end ${percent(rate)}`),
  );
  box.replaceChildren(svg);
}

// --- The tree ---

const NODE = { height: 26, gapX: 34, gapY: 12, character: 8, pad: 18 };

// Nodes with their depth and row: a leaf has a row of its own, a parent the first of its children's rows.
function layOut(round, rootText) {
  const nodes = [{ parent: -1, text: rootText, kind: "root", score: null }];
  let last = 0;
  (round.tree ?? []).forEach((node, i) => {
    nodes.push({ parent: node.p, text: node.t, kind: node.a ? "accepted" : "rejected", source: node.l, score: node.s });
    if (node.a) last = i + 1;
  });
  for (const node of round.masked_tree ?? []) {
    nodes.push({ parent: node.p, text: node.t, kind: "masked", source: node.l, score: node.s });
  }
  const bonus = round.tokens.at(-1);
  if (bonus !== undefined && !bonus.a) nodes.push({ parent: last, text: bonus.t, kind: "bonus", score: null });
  nodes.forEach((node, i) => {
    node.depth = i === 0 ? 0 : nodes[node.parent].depth + 1;
    node.label =
      { root: "", accepted: "✓ ", rejected: "", bonus: "+ ", masked: "⊘ " }[node.kind] +
      (SOURCE_MARKS[node.source] ?? "") +
      visible(node.text);
    node.children = [];
    if (i > 0) nodes[node.parent].children.push(i);
  });
  // What was committed comes first among siblings.
  const rank = { accepted: 0, bonus: 1, rejected: 2, masked: 3 };
  for (const node of nodes) node.children.sort((a, b) => rank[nodes[a].kind] - rank[nodes[b].kind] || a - b);
  let row = 0;
  const place = (index) => {
    const node = nodes[index];
    node.row = row;
    if (node.children.length === 0) ++row;
    else node.children.forEach(place);
  };
  place(0);
  const widths = [];
  for (const node of nodes) {
    node.width = [...node.label].length * NODE.character + NODE.pad + (node.score === null ? 0 : 34);
    widths[node.depth] = Math.max(widths[node.depth] ?? 0, node.width);
  }
  let x = 2;
  const columns = widths.map((width) => {
    const at = x;
    x += width + NODE.gapX;
    return at;
  });
  for (const node of nodes) {
    node.x = columns[node.depth];
    node.y = 4 + node.row * (NODE.height + NODE.gapY);
  }
  return { nodes, width: x - NODE.gapX + 2, height: 8 + row * (NODE.height + NODE.gapY) };
}

function treeDrawing(round, rootText) {
  const { nodes, width, height } = layOut(round, rootText);
  const svg = drawing("svg", { width, height, role: "img" });
  const order = { rejected: 0, masked: 0, root: 0, bonus: 1, accepted: 2 };
  const edges = nodes.filter((node) => node.parent >= 0).sort((a, b) => order[a.kind] - order[b.kind]);
  for (const node of edges) {
    const above = nodes[node.parent];
    const from = { x: above.x + above.width, y: above.y + NODE.height / 2 };
    const to = { x: node.x, y: node.y + NODE.height / 2 };
    const middle = to.x - NODE.gapX / 2;
    const d = `M${from.x} ${from.y}H${middle - 8}C${middle} ${from.y} ${middle - 6} ${to.y} ${middle + 4} ${to.y}H${to.x}`;
    svg.append(drawing("path", { class: `edge ${node.kind}`, d }));
  }
  for (const node of nodes) {
    const group = drawing("g", { class: `node ${node.kind}` });
    group.append(
      drawing("rect", { x: node.x, y: node.y, width: node.width, height: NODE.height, rx: 6 }),
      drawing("text", { class: "label", x: node.x + NODE.pad / 2, y: node.y + 18 }, node.label),
    );
    if (node.score !== null) {
      const score = drawing("text", { x: node.x + node.width - 7, y: node.y + 17, "text-anchor": "end" }, fixed(node.score, 2));
      group.append(score);
    }
    svg.append(group);
  }
  const path = nodes.filter((node) => node.kind === "accepted").map((node) => JSON.stringify(node.text));
  const bonus = nodes.find((node) => node.kind === "bonus");
  svg.setAttribute(
    "aria-label",
    `Tree of ${plural((round.tree ?? []).length, "candidate")}. ` +
      (path.length > 0 ? `Accepted path: ${path.join(", ")}. ` : "Nothing accepted. ") +
      (bonus ? `Bonus token: ${JSON.stringify(bonus.text)}.` : ""),
  );
  return svg;
}

function treeTable(round) {
  const tree = round.tree ?? [];
  const rows = tree.map((node) => ({
    className: node.a ? "chosen" : "",
    cells: [
      visible(node.t, 40),
      node.p === 0 ? "(root)" : visible(tree[node.p - 1].t, 40),
      fixed(node.s, 3),
      GUESSERS[node.l],
      node.a ? "accepted" : "not accepted",
    ],
  }));
  for (const node of round.masked_tree ?? []) {
    const above = node.p === 0 ? "(root)" : visible(tree[node.p - 1].t, 40);
    rows.push({ cells: [visible(node.t, 40), above, fixed(node.s, 3), GUESSERS[node.l], "not allowed"] });
  }
  const bonus = round.tokens.at(-1);
  if (bonus !== undefined && !bonus.a) rows.push({ cells: [visible(bonus.t, 40), "", "", "", "bonus token"] });
  const columns = [["Token", "name"], ["After", "name"], ["Score", ""], ["Guessed by", ""], ["Outcome", ""]];
  return table(columns, rows, "Candidates of this round");
}

function factsOf(round) {
  const committed = round.tokens.length;
  const facts = [
    `window ${round.window}`,
    plural(round.nodes, "candidate"),
    `${round.accepted} accepted`,
    ...(round.sources.nodes[1] > 0
      ? [`of these the verifier’s own ◦: ${round.sources.nodes[1]}, ${round.sources.accepted[1]} accepted`]
      : []),
    ...(round.sources.nodes[2] > 0
      ? [`of these left no choice by the constraint =: ${round.sources.nodes[2]}, ${round.sources.accepted[2]} accepted`]
      : []),
    ...(round.sources.nodes[3] > 0
      ? [`of these predicted by the request »: ${round.sources.nodes[3]}, ${round.sources.accepted[3]} accepted`]
      : []),
    ...(round.masked > 0 ? [`${round.masked} dropped ⊘, as the constraint does not allow them`] : []),
    `${plural(committed, "token")} committed`,
  ];
  if (round.kind === "hit") facts.push("hit: started at once");
  if (round.kind === "miss") facts.push("miss: waited for the drafter");
  if (round.kind === "undrafted") facts.push("undrafted");
  if (round.wait_ms > 0.05) facts.push(`waited ${fixed(round.wait_ms, 1)} ms`);
  if (round.verify_ms !== undefined) facts.push(`verified in ${fixed(round.verify_ms, 1)} ms`);
  return facts.join(" · ");
}

function drawRound(generation, selected) {
  const count = generation === null ? 0 : generation.rounds.length;
  $("first").disabled = $("previous").disabled = selected === null || selected === 0;
  $("next").disabled = $("last").disabled = selected === null || selected >= count - 1;
  if (selected === null) {
    if (changed("round", null)) {
      $("tree-title").textContent = "Round";
      $("tree").replaceChildren();
      $("tree-table").replaceChildren();
    }
    return;
  }
  const round = generation.rounds[selected];
  const newest = model.round === null && generation.end === null ? ", the newest" : "";
  $("tree-title").textContent = `Round ${round.n + 1} of ${generation.rounds.at(-1).n + 1}${newest}`;
  if (!changed("round", generation.key, round.n)) return;
  $("round-facts").textContent = round.problem ? `${factsOf(round)} · ${round.problem}` : factsOf(round);
  const before = selected > 0 ? generation.rounds[selected - 1].tokens.at(-1).t : "";
  const rootText = selected > 0 || generation.dropped > 0 ? before : "end of the prompt";
  $("tree").replaceChildren(treeDrawing(round, rootText));
  $("tree").scrollLeft = 0;
  $("tree-table").replaceChildren(treeTable(round));
}

// --- Tenants ---

function drawTenants() {
  if (model.tenants === null || !changed("tenants", model.tenants)) return;
  const columns = [
    ["Tenant", "name"], ["Policy", "name"], ["Last drafter", "name"], ["Running", ""], ["Done", ""], ["Failed", ""],
    ["Tokens", ""], ["Drafter’s acceptance", ""], ["Local acceptance", ""], ["Forced acceptance", ""],
    ["Predicted acceptance", ""], ["Acceptance length", ""],
  ];
  const rows = model.tenants.tenants.map((tenant) => ({
    cells: [
      tenant.tenant,
      tenant.policy || "–",
      tenant.drafter || "–",
      tenant.running,
      tenant.finished,
      tenant.failed,
      tenant.tokens,
      ...SOURCES.map((_, i) => shareOf(tenant.accepted_tokens[i], tenant.draft_tokens[i])),
      tenant.drafted_rounds > 0
        ? fixed(1 + tenant.accepted_tokens.reduce((sum, count) => sum + count, 0) / tenant.drafted_rounds, 2)
        : "–",
    ],
  }));
  const nodes = [table(columns, rows, "Tenants")];
  if (model.tenants.more > 0) nodes.push(element("p", { className: "muted", textContent: `and ${model.tenants.more} more` }));
  $("tenants").replaceChildren(...nodes);
}

// --- What people do ---

function showRound(index) {
  const generation = current();
  if (generation === null || generation.rounds.length === 0) return;
  setFollow(false);
  model.round = Math.max(0, Math.min(index, generation.rounds.length - 1));
  invalidate();
}

function setFollow(follow) {
  model.follow = follow;
  $("follow").setAttribute("aria-pressed", String(follow));
  if (!follow) return;
  model.round = null;
  const newest = [...model.generations.keys()].at(-1);
  if (newest !== undefined) select(newest);
}

function setPaused(paused) {
  model.paused = paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  if (!paused) {
    const waiting = model.waiting;
    model.waiting = [];
    if (model.dropped > 0) apply("gap", { missed: model.dropped });
    model.dropped = 0;
    for (const [type, content] of waiting) apply(type, content);
  }
  if (["live", "paused"].includes($("status").dataset.state)) showLive();
}

function onKey(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
  const at = event.target;
  // These scroll by themselves.
  const scrolls = at instanceof Element && at.closest(".text, .scroll") !== null;
  const round = shownRound(current());
  const actions = { p: () => setPaused(!model.paused), f: () => setFollow(!model.follow) };
  if (round !== null && !scrolls) {
    actions.ArrowLeft = () => showRound(round - 1);
    actions.ArrowRight = () => showRound(round + 1);
    actions.Home = () => showRound(0);
    actions.End = () => showRound(Infinity);
  }
  const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (action === undefined) return;
  event.preventDefault();
  action();
}

document.addEventListener("keydown", onKey);
$("pause").addEventListener("click", () => setPaused(!model.paused));
$("follow").addEventListener("click", () => setFollow(!model.follow));
$("retry").addEventListener("click", connect);
$("first").addEventListener("click", () => showRound(0));
$("previous").addEventListener("click", () => showRound(shownRound(current()) - 1));
$("next").addEventListener("click", () => showRound(shownRound(current()) + 1));
$("last").addEventListener("click", () => showRound(Infinity));
$("text").addEventListener("click", (event) => {
  const number = event.target instanceof Element ? event.target.closest("[data-round]")?.dataset.round : undefined;
  if (number === undefined) return;
  showRound(current().rounds.findIndex((round) => round.n === Number(number)));
});
new ResizeObserver(invalidate).observe($("chart"));
connect();
