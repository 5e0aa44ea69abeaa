/* The rollout browser: a table with filters, and token heat maps, one or two of them side by side. */
"use strict";
(() => {
  const { one, all, read, make, visible, cut, digits, colour } = equipoise;
  const BLOCK = 500; /* tokens that a browser lays out together, or not at all while they are out of view */
  const BUCKETS = 16;
  const TOP = 3; /* nats: the scale is the same for every rollout, so that they compare */

  /* Numbers exactly as the record has them. */
  function half(code) {
    const exponent = (code >> 10) & 31;
    const fraction = code & 1023;
    const size = exponent === 0 ? fraction * 2 ** -24 : exponent === 31 ? (fraction ? NaN : Infinity) : (1 + fraction / 1024) * 2 ** (exponent - 15);
    return code >> 15 ? -size : size;
  }
  const ARRAYS = { i4: Int32Array, i8: BigInt64Array, u1: Uint8Array, u2: Uint16Array, f4: Float32Array, f8: Float64Array };
  function unpack(held) {
    if (!held) return null;
    const text = atob(held.data);
    const bytes = new Uint8Array(text.length);
    for (let place = 0; place < text.length; place += 1) bytes[place] = text.charCodeAt(place);
    if (held.kind === "f2") return Float64Array.from(new Uint16Array(bytes.buffer), half);
    const values = new ARRAYS[held.kind](bytes.buffer);
    return held.kind === "i8" ? Float64Array.from(values, Number) : values;
  }

  /* A rollout's tokens: their texts, entropies and log-probs, or null where it has none. */
  function tokensOf(row, vocab) {
    if (row.tokens !== undefined) return row.tokens;
    const ids = unpack(row.ids);
    const entropies = unpack(row.entropies);
    const logprobs = unpack(row.logprobs);
    const n = (ids ?? entropies ?? logprobs)?.length ?? 0;
    const named = ids !== null && n > 0 && ids.some((id) => vocab[id]);
    const text = (place) => (named ? vocab[ids[place]] : undefined);
    row.tokens = n === 0 ? null : { n, ids, entropies, logprobs, named, text };
    return row.tokens;
  }
  const bucketOf = (entropy) => Math.max(0, Math.min(BUCKETS - 1, Math.floor((entropy / TOP) * BUCKETS)));
  const isFork = (row, tokens, place) => row.fork_from !== undefined && tokens.entropies?.[place] >= row.fork_from;
  /* A token that has no text of its own (the end of a completion, an id without a name) is shown by its number. */
  function tokenText(tokens, place) {
    const text = tokens.text(place);
    if (text) return visible(text).replaceAll("\n", "↵\n");
    return tokens.ids === null ? "▪" : `⟨${tokens.ids[place]}⟩`;
  }

  /* Where blocks begin: after a line's end where one is near, since every block begins a new line. */
  function blocksOf(tokens, from) {
    const starts = [from];
    let start = from;
    for (let place = from; place < tokens.n; place += 1) {
      const size = place + 1 - start;
      if (size >= BLOCK || (size >= BLOCK * 0.8 && tokens.text(place)?.endsWith("\n"))) starts.push((start = place + 1));
    }
    return starts.filter((begin) => begin < tokens.n || begin === from);
  }

  /* One heat map. `split`: where this rollout leaves the one beside it. */
  function heatMap(row, tokens, split) {
    const root = make("div", { class: tokens.n <= 120 ? "heat short" : "heat" });
    const blocks = [];
    const add = (start, end) => {
      const block = make("div", { class: "block" });
      for (let place = start; place < end; place += 1) {
        const token = document.createElement("span");
        const entropy = tokens.entropies === null ? NaN : tokens.entropies[place];
        token.className = `t ${Number.isNaN(entropy) ? "plain" : `h${bucketOf(entropy)}`}${isFork(row, tokens, place) ? " f" : ""}`;
        token.textContent = tokenText(tokens, place);
        block.append(token);
      }
      root.append(block);
      blocks.push({ start, end, block });
    };
    const run = (starts, end) => starts.forEach((start, number) => add(start, starts[number + 1] ?? end));
    if (split === null) {
      run(blocksOf(tokens, 0), tokens.n);
    } else {
      if (split > 0) run(blocksOf({ ...tokens, n: split }, 0), split);
      root.append(make("p", { class: "split" }, split < tokens.n ? `from here on they differ (token ${split + 1})` : `ends here (${tokens.n} ${tokens.n === 1 ? "token" : "tokens"})`));
      if (split < tokens.n) run(blocksOf(tokens, split), tokens.n);
    }
    const holder = (place) => blocks.find(({ start, end }) => start <= place && place < end);
    const spanAt = (place) => { const held = holder(place); return held.block.children[place - held.start]; };
    const placeOf = (span) => {
      const held = blocks.find(({ block }) => block === span.parentElement);
      return held.start + [...held.block.children].indexOf(span);
    };
    return { root, spanAt, placeOf };
  }

  /* All of a rollout as a strip: the highest entropy in every column of pixels. */
  function drawStrip(canvas, tokens) {
    const width = Math.max(1, Math.round(canvas.clientWidth * devicePixelRatio));
    canvas.width = width;
    canvas.height = 1;
    const pen = canvas.getContext("2d");
    const shades = Array.from({ length: BUCKETS }, (_, number) => colour(`--h${number}`));
    for (let x = 0; x < width; x += 1) {
      const from = Math.floor((x / width) * tokens.n);
      const to = Math.max(from + 1, Math.floor(((x + 1) / width) * tokens.n));
      let highest = NaN;
      for (let place = from; place < to; place += 1) {
        const entropy = tokens.entropies[place];
        if (!(entropy <= highest) && !Number.isNaN(entropy)) highest = entropy;
      }
      if (Number.isNaN(highest)) continue;
      pen.fillStyle = shades[bucketOf(highest)];
      pen.fillRect(x, 0, 1, 1);
    }
  }

  const percent = (share) => `${digits(100 * share)} %`;
  const named = (text) => visible(text).replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥");
  function tokenName(vocab, id) {
    return vocab[id] ? cut(named(vocab[id]), 200) : `⟨${id}⟩`;
  }
  /* What is known of one token, in words. */
  function tellToken(target, row, tokens, place, vocab) {
    const entropy = tokens.entropies === null ? NaN : tokens.entropies[place];
    const logprob = tokens.logprobs === null ? NaN : tokens.logprobs[place];
    const id = tokens.ids === null ? null : tokens.ids[place];
    const likely = row.top_ids?.[place];
    const chances = row.top_logprobs?.[place];
    const rank = likely && id !== null ? likely.indexOf(id) : null;
    const facts = [
      `token ${place + 1} of ${tokens.n}${id === null ? "" : `, id ${id}`}`,
      Number.isNaN(entropy) ? "entropy not measured" : `entropy ${digits(entropy)} nats${isFork(row, tokens, place) ? ", a fork" : ""}`,
      Number.isNaN(logprob) ? "probability not recorded" : `probability ${percent(Math.exp(logprob))} (log ${digits(logprob)})`,
      rank === null ? "alternatives not recorded" : rank < 0 ? `not among the ${likely.length} likeliest` : `rank ${rank + 1}`,
    ];
    const name = id === null ? "▪" : tokenName(vocab, id);
    const others = likely ? [make("ol", { "aria-label": "likeliest tokens" }, ...likely.map((other, number) => make("li", {},
      make("code", {}, tokenName(vocab, other)), chances?.[number] === undefined || chances[number] === null ? "" : ` ${percent(Math.exp(chances[number]))}`)))] : [];
    target.replaceChildren(make("p", {}, make("b", {}, name), ` ${facts.join(" · ")}`), ...others);
  }

  /* The first place where two rollouts part: by token where both have ids, else by character. */
  function firstDifference(a, b) {
    const most = Math.min(a.length, b.length);
    let place = 0;
    while (place < most && a[place] === b[place]) place += 1;
    return place;
  }

  const fact = (label, value) => (value === undefined || value === null || value === "" ? null : make("div", {}, make("dt", {}, label), make("dd", {}, visible(cut(String(value), 300)))));
  function aboutRollout(row) {
    const parts = Object.entries(row.rewards ?? {}).map(([name, value]) => fact(cut(visible(name), 60), digits(value)));
    return make("div", { class: "about" }, make("dl", {},
      fact("rollout", row.number + 1), fact("step", row.step), fact("sample", row.sample_index), fact("outcome", outcomeOf(row)), fact("reward", row.reward === undefined ? null : digits(row.reward)),
      ...parts, fact("answer", row.answer), fact("right answer", row.reference_answer), fact("tokens", row.n_tokens ?? row.tokens?.n), fact("ended by", row.finish_reason),
      fact("mean entropy", row.mean_entropy === undefined ? null : `${digits(row.mean_entropy)} nats`), fact("95 % of tokens below", row.p95_entropy === undefined ? null : `${digits(row.p95_entropy)} nats`),
      fact("confidence", row.confidence), fact("advantage", row.advantage === undefined ? null : digits(row.advantage)), fact("flags", row.flags.join(", "))));
  }
  const OUTCOMES = { right: "✓ right", wrong: "✗ wrong", unparsable: "? no answer", timeout: "… checker timed out", error: "! checker failed" };
  function outcomeOf(row) {
    const outcome = row.outcome ?? (row.correct === undefined ? undefined : row.correct ? "right" : "wrong");
    return outcome === undefined ? "unknown" : OUTCOMES[outcome] ?? outcome;
  }

  let active = null; /* the heat map that the keys move in */
  function openRollouts(target, rows, vocab, prompts, others, compare) {
    const tokens = rows.map((row) => tokensOf(row, vocab));
    const splits = rows.map(() => null);
    if (rows.length === 2 && tokens.every((held) => held?.ids)) {
      splits.fill(firstDifference(tokens[0].ids, tokens[1].ids));
    }
    const closing = rows.length === 2 ? make("button", { type: "button" }, "Close the second") : null;
    closing?.addEventListener("click", () => compare(null));
    const chooser = make("select", { "aria-label": "Compare with another rollout of this problem" }, make("option", { value: "" }, others.length ? "Compare with…" : "No other rollout of this problem here"),
      ...others.map((row) => make("option", { value: row.number }, cut(visible(`#${row.number + 1} step ${row.step ?? "–"}, ${outcomeOf(row)}`), 80))));
    chooser.disabled = !others.length;
    chooser.addEventListener("change", () => chooser.value !== "" && compare(Number(chooser.value)));
    const legend = make("div", { class: "scale", role: "img", "aria-label": "Colour scale: token entropy from 0 to 3 nats and more; an outline marks a fork" }, "0", make("span", { class: "steps" }, ...Array.from({ length: BUCKETS }, (_, number) => make("span", { class: `h${number}` }))), "3 nats and more", make("span", { class: "key" }, "fork"), "the fifth of a rollout's tokens with the highest entropy");
    const heats = tokens.some((held) => held) ? rows.map((row, side) => (tokens[side] ? heatMap(row, tokens[side], splits[side]) : null)) : [];
    const prompt = rows[0].prompt === undefined ? null : make("details", { open: true }, make("summary", {}, "Prompt"), make("div", { class: "text", tabindex: "0", role: "region", "aria-label": "Prompt" }, visible(prompts[rows[0].prompt])));
    const sides = (kind, ...children) => make("div", { class: `sides${rows.length === 2 ? " two" : ""} ${kind}` }, ...children);
    const seen = rows.map(() => make("div", { class: "seen" }));
    const strips = rows.map((_, side) => (tokens[side]?.entropies ? make("div", { class: "map", role: "img", "aria-label": `Entropy along rollout ${rows[side].number + 1}` }, make("canvas"), seen[side]) : make("div")));
    const details = rows.map((_, side) => make("div", { class: "told", "aria-live": "polite" }, tokens[side] ? "Point at a token, or move with the keys." : ""));
    const scroll = make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Tokens; n and p move between forks, arrow keys between tokens" }, sides("", ...rows.map((row, side) => heats[side]?.root ?? plainText(row))));
    const texts = rows.map((row, side) => (tokens[side] && !tokens[side].named ? make("details", { open: true }, make("summary", {}, "Text (the strings of its tokens are not recorded, so their numbers are shown below)"), textBlock(row.completion ?? "")) : make("div")));
    target.replaceChildren(
      make("div", { class: "bar" }, make("strong", {}, rows.map((row) => `Rollout ${row.number + 1}`).join(" and ")), chooser, closing,
        !heats.length ? make("span", { class: "hint" }, "Its token entropies are not recorded: capture them in the trainer for a heat map.") : make("span", { class: "hint" }, make("kbd", {}, "n"), " ", make("kbd", {}, "p"), " next and previous fork, ", make("kbd", {}, "←"), " ", make("kbd", {}, "→"), " token")),
      prompt, sides("", ...rows.map(aboutRollout)), ...(texts.some((text) => text.tagName === "DETAILS") ? [sides("", ...texts)] : []),
      ...(heats.some((heat) => heat) ? [legend, sides("", ...strips), scroll, sides("", ...details)] : [scroll]));

    const at = rows.map(() => -1);
    function go(side, place, move) {
      if (!heats[side] || place < 0 || place >= tokens[side].n) return;
      one(".now", heats[side].root)?.classList.remove("now");
      at[side] = place;
      const span = heats[side].spanAt(place);
      span.classList.add("now");
      tellToken(details[side], rows[side], tokens[side], place, vocab);
      if (move) bring(span);
    }
    /* Within the box only: the page stays where it is. */
    function bring(span) {
      const box = scroll.getBoundingClientRect();
      for (let turn = 0; turn < 2; turn += 1) { /* twice: what comes into view gets its real height only then */
        const spot = span.getBoundingClientRect();
        if (spot.top < box.top + 8 || spot.bottom > box.bottom - 8) scroll.scrollTop += spot.top - box.top - box.height / 2;
      }
    }
    function fork(side, way) {
      const held = tokens[side];
      for (let place = at[side] + way; held && place >= 0 && place < held.n; place += way) {
        if (isFork(rows[side], held, place)) return go(side, place, true);
      }
    }
    active = { side: 0, fork: (way) => fork(active.side, way), step: (way) => go(active.side, Math.max(0, at[active.side] + way), true) };
    const mine = active;
    heats.forEach((heat, side) => {
      heat?.root.addEventListener("pointerover", (event) => {
        if (event.target.classList.contains("t")) { active = mine; active.side = side; go(side, heat.placeOf(event.target), false); }
      });
    });
    function showSeen() {
      const share = scroll.clientHeight / scroll.scrollHeight;
      for (const mark of seen) {
        mark.style.left = `${(scroll.scrollTop / scroll.scrollHeight) * 100}%`;
        mark.style.width = `${Math.min(1, share) * 100}%`;
        mark.hidden = share >= 1;
      }
    }
    scroll.addEventListener("scroll", showSeen, { passive: true });
    strips.forEach((strip, side) => {
      const canvas = one("canvas", strip);
      if (!canvas) return;
      drawStrip(canvas, tokens[side]);
      strip.addEventListener("click", (event) => {
        const box = canvas.getBoundingClientRect();
        active = mine;
        active.side = side;
        go(side, Math.min(tokens[side].n - 1, Math.floor(((event.clientX - box.left) / box.width) * tokens[side].n)), true);
      });
    });
    showSeen();
    return () => strips.forEach((strip, side) => one("canvas", strip) && drawStrip(one("canvas", strip), tokens[side]));
  }
  const textBlock = (text) => make("div", { class: "text", tabindex: "0", role: "region", "aria-label": "Text" }, visible(text));
  function plainText(row) {
    const text = row.completion ?? "";
    const parts = row.thinking ? [make("p", { class: "fine" }, "thinking"), make("div", {}, visible(row.thinking)), make("p", { class: "fine" }, "answer")] : [];
    return make("div", { class: "heat" }, ...parts, make("div", {}, text ? visible(text) : "The text of this rollout is not recorded."));
  }

  /* The table and its filters. */
  const HEADS = [
    ["#", (row) => row.number, (row) => String(row.number + 1)],
    ["step", (row) => row.step, (row) => row.step ?? "–"],
    ["problem", (row) => row.prompt_id, (row) => row.prompt_id ?? "–"],
    ["drawn as", (row) => row.drawn, (row) => row.drawn],
    ["outcome", outcomeOf, outcomeOf],
    ["reward", (row) => row.reward, (row) => digits(row.reward)],
    ["mean entropy", (row) => row.mean_entropy, (row) => digits(row.mean_entropy)],
    ["95 % entropy", (row) => row.p95_entropy, (row) => digits(row.p95_entropy)],
    ["tokens", (row) => row.n_tokens, (row) => digits(row.n_tokens)],
    ["flags", (row) => row.flags.join(), (row) => row.flags.join(", ")],
  ];
  const NUMERIC = new Set(["#", "step", "reward", "mean entropy", "95 % entropy", "tokens"]);
  /* The conditions that differ between the rows, as one text. */
  function tellDrawn(rows) {
    const names = ["run_id", "split", "strategy", "budget", "temperature"].filter((name) => new Set(rows.map((row) => row[name])).size > 1);
    for (const row of rows) row.drawn = names.map((name) => (row[name] === undefined ? null : name === "budget" || name === "temperature" ? `${name} ${row[name]}` : row[name])).filter(Boolean).join(", ");
  }
  const compare = (a, b) => (a === undefined ? 1 : b === undefined ? -1 : typeof a === "number" ? a - b : String(a).localeCompare(String(b)));

  function setUp(section) {
    const { rows, prompts, vocab } = read(`rollouts-${section.dataset.rollouts}`);
    if (!rows.length) return;
    rows.forEach((row, number) => { row.number = number; });
    tellDrawn(rows);
    const heads = HEADS.filter(([, key]) => rows.some((row) => key(row) !== undefined && key(row) !== ""));
    const known = (values) => [...new Set(values.filter((value) => value !== undefined))];
    const choose = (label, values) => make("select", { "aria-label": label }, make("option", { value: "" }, "all"), ...values.map((value, place) => make("option", { value: place }, cut(visible(value), 60))));
    const choices = {
      step: known(rows.map((row) => row.step)).sort((a, b) => a - b),
      problem: known(rows.map((row) => row.prompt_id)),
      outcome: known(rows.map(outcomeOf)),
      flag: known(rows.flatMap((row) => row.flags)),
    };
    const of = { step: (row) => [row.step], problem: (row) => [row.prompt_id], outcome: (row) => [outcomeOf(row)], flag: (row) => row.flags };
    const selects = Object.fromEntries(Object.entries(choices).filter(([, values]) => values.length > 1).map(([name, values]) => [name, choose(name, values)]));
    const least = make("input", { type: "number", step: "any", "aria-label": "lowest reward" });
    const most = make("input", { type: "number", step: "any", "aria-label": "highest reward" });
    const wanted = make("input", { type: "search", "aria-label": "text in prompt, completion or answer" });
    const count = make("output", { "aria-live": "polite" });
    const field = (name, element) => make("label", {}, name, element);
    const filters = make("div", { class: "filters", role: "search", "aria-label": "Choose rollouts" }, ...Object.entries(selects).map(([name, element]) => field(name, element)), field("reward from", least), field("reward to", most), field("text", wanted), count);
    const headRow = make("tr", {}, ...heads.map(([name]) => { const button = make("button", { type: "button" }, name); return make("th", { scope: "col", class: NUMERIC.has(name) ? "number" : null }, button); }));
    const body = make("tbody");
    const view = make("div", { class: "view" });
    section.append(filters, make("div", { class: "rows", tabindex: "0", role: "region", "aria-label": "Rollouts" }, make("table", {}, make("thead", {}, headRow), body)), view);

    let sorted = { by: 0, way: 1 };
    let opened = [];
    let repaint = () => {};
    const shows = (row) => {
      for (const [name, element] of Object.entries(selects)) {
        if (element.value !== "" && !of[name](row).includes(choices[name][Number(element.value)])) return false;
      }
      if (least.value !== "" && !(row.reward >= Number(least.value))) return false;
      if (most.value !== "" && !(row.reward <= Number(most.value))) return false;
      const text = wanted.value.toLowerCase();
      return !text || [row.completion, row.answer, row.prompt === undefined ? "" : prompts[row.prompt]].some((held) => held?.toLowerCase().includes(text));
    };
    function open(numbers) {
      opened = numbers;
      const chosen = numbers.map((number) => rows[number]);
      const others = rows.filter((row) => row.prompt_id !== undefined && row.prompt_id === chosen[0].prompt_id && row !== chosen[0]);
      repaint = openRollouts(view, chosen, vocab, prompts, others, (number) => open(number === null ? [numbers[0]] : [numbers[0], number]));
      mark();
    }
    const mark = () => all("tr", body).forEach((line) => { const is = opened.includes(Number(line.dataset.number)); line.classList.toggle("open", is); one("button", line).setAttribute("aria-pressed", String(is)); });
    function list() {
      const [, key] = heads[sorted.by];
      const found = rows.filter(shows).sort((a, b) => { const order = compare(key(a), key(b)); return key(a) === undefined || key(b) === undefined ? order : sorted.way * order; });
      count.textContent = `${found.length} of ${rows.length} shown`;
      body.replaceChildren(...found.map((row) => make("tr", { "data-number": row.number }, ...heads.map(([name, , shown]) => {
        const text = cut(visible(shown(row)), 120);
        return make("td", { class: NUMERIC.has(name) ? "number" : null }, name === "#" ? make("button", { type: "button", "aria-label": `Open rollout ${row.number + 1}` }, text) : text);
      }))));
      all("th", headRow).forEach((head, place) => (place === sorted.by ? head.setAttribute("aria-sort", sorted.way > 0 ? "ascending" : "descending") : head.removeAttribute("aria-sort")));
      mark();
      return found;
    }
    body.addEventListener("click", (event) => { const line = event.target.closest("tr"); if (line) open([Number(line.dataset.number)]); });
    all("button", headRow).forEach((button, place) => button.addEventListener("click", () => { sorted = { by: place, way: sorted.by === place ? -sorted.way : 1 }; list(); }));
    filters.addEventListener("input", list);
    document.addEventListener("recoloured", () => repaint());
    addEventListener("resize", () => repaint());
    /* The longest of the last step shows most; without any entropies, the first will do. */
    const measured = list().filter((row) => row.entropies);
    const last = measured.filter((row) => row.step === measured.at(-1).step);
    open([last.reduce((best, row) => ((row.n_tokens ?? 0) > (best.n_tokens ?? 0) ? row : best), last[0] ?? rows[0]).number]);
  }

  addEventListener("keydown", (event) => {
    if (!active || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    if (event.key === "n" || event.key === "p") { active.fork(event.key === "n" ? 1 : -1); event.preventDefault(); }
    if ((event.key === "ArrowRight" || event.key === "ArrowLeft") && event.target.closest(".scroll")) { active.step(event.key === "ArrowRight" ? 1 : -1); event.preventDefault(); }
  });
  const near = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting) { near.unobserve(target); setUp(target); }
    }
  }, { rootMargin: "800px" });
  for (const section of all("[data-rollouts]")) near.observe(section);
})();
