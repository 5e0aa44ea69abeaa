/* The page: theme, tabs, figures drawn as they come into view, numbers and downloads. Text goes into text nodes only. */
"use strict";
const equipoise = (() => {
  const one = (selector, within = document) => within.querySelector(selector);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const read = (id) => JSON.parse(document.getElementById(id).textContent);

  /* An element with attributes and children; a string child becomes a text node. */
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child !== null));
    return element;
  }

  /* Characters that would hide, turn or end text are shown by name; line ends and tabs stay. */
  const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]|\udb40[\udc00-\udc7f]/g;
  function visible(text) {
    return String(text).replace(HIDDEN, (found) => {
      const code = found.codePointAt(0);
      return code < 0x20 ? String.fromCharCode(0x2400 + code) : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
    });
  }
  const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

  function digits(value) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en");
    return Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6 ? String(Number(value.toPrecision(4))) : value.toExponential(2);
  }

  /* Saving: a file made here, from what the page holds. */
  function save(name, kind, content) {
    const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type: kind }));
    const link = make("a", { href: url, download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 60000);
  }

  const COLUMNS = ["name", "value", "low", "high", "n"];
  const placesOf = (numbers) => [...new Set(numbers.flatMap((number) => Object.keys(number.at)))];
  const cellOf = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : value);
  function csvCell(value) {
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return String(value);
    const text = String(value);
    /* A spreadsheet would run a text that begins like a formula. */
    const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  }
  function csvOf(numbers) {
    const places = placesOf(numbers);
    const rows = numbers.map((number) => [...COLUMNS.map((name) => number[name]), ...places.map((key) => cellOf(number.at[key])), number.how, number.missing]);
    return [[...COLUMNS, ...places.map((key) => `at ${key}`), "how", "missing"], ...rows].map((row) => row.map(csvCell).join(",")).join("\n") + "\n";
  }

  /* Plotly is started when the first figure is near: until then it is text. */
  function plotly() {
    if (!window.Plotly) document.head.append(make("script", {}, document.getElementById("plotly").textContent));
    return window.Plotly;
  }

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const plots = {};
  const told = read("report");
  function figureOf(element) {
    const [kind, place] = element.dataset.part.split("-");
    const part = told[kind === "run" ? "runs" : "studies"][Number(place)];
    return part.figures.find((figure) => figure.name === element.dataset.figure);
  }
  function plotOf(element) {
    const part = element.dataset.part;
    plots[part] ??= read(`plots-${part}`);
    return plots[part][element.dataset.figure];
  }
  /* The page's ink on a figure that brings its own colours only for data. */
  const dressed = (layout) => ({
    ...layout,
    autosize: true,
    width: undefined,
    dragmode: matchMedia("(pointer: coarse)").matches ? false : layout.dragmode ?? "zoom",
    font: { ...layout.font, color: colour("--ink"), ...(innerWidth < 600 ? { size: 11 } : {}) },
    hoverlabel: { ...layout.hoverlabel, bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: colour("--ink") } },
  });

  const drawn = new Map();
  function draw(element) {
    if (drawn.has(element)) return drawn.get(element);
    const target = one(".plot", element);
    const { data, layout } = plotOf(element);
    /* Plots beside each other need room: on a phone they scroll. */
    if (Object.entries(layout).some(([name, axis]) => name.startsWith("xaxis") && axis.domain?.[0] > 0)) {
      target.classList.add("broad");
      if (target.scrollWidth > target.parentElement.clientWidth) target.parentElement.tabIndex = 0;
    }
    /* As tall as its neighbour's, within reason. */
    const height = Math.max(layout.height ?? 0, Math.min(target.parentElement.clientHeight, 1.4 * element.dataset.height));
    const done = plotly().newPlot(target, data, { ...dressed(layout), height }, { displayModeBar: false, responsive: true });
    drawn.set(element, done);
    return done;
  }
  const waiting = [];
  function later(element) {
    waiting.push(element);
    if (waiting.length > 1) return;
    /* One figure a turn, so that the page answers in between. */
    const turn = () => {
      draw(waiting[0]);
      waiting.shift();
      if (waiting.length) setTimeout(turn);
    };
    requestAnimationFrame(() => setTimeout(turn));
  }
  function recolour() {
    for (const element of drawn.keys()) {
      const { layout } = plotOf(element);
      window.Plotly.relayout(one(".plot", element), { font: dressed(layout).font, hoverlabel: dressed(layout).hoverlabel });
    }
  }

  const SAVES = {
    csv: (figure, name) => save(`${name}.csv`, "text/csv", csvOf(figure.estimates)),
    json: (figure, name) => save(`${name}.json`, "application/json", JSON.stringify(figure, null, 2)),
    png: async (figure, name, element) => {
      await draw(element);
      const target = one(".plot", element);
      const { data, layout } = plotOf(element);
      const size = { width: target.clientWidth, height: target.clientHeight };
      const paper = { ...dressed(layout), paper_bgcolor: colour("--card") };
      const url = await window.Plotly.toImage({ data, layout: paper }, { format: "png", scale: 2, ...size });
      const bytes = Uint8Array.from(atob(url.split(",")[1]), (character) => character.charCodeAt(0));
      save(`${name}.png`, "image/png", new Blob([bytes], { type: "image/png" }));
    },
  };

  function fillNumbers(element, details) {
    const { estimates } = figureOf(element);
    const places = placesOf(estimates);
    const head = make("tr", {}, ...[...COLUMNS, ...places].map((name) => make("th", { scope: "col" }, visible(name))));
    const rows = estimates.map((number) => make("tr", {},
      make("td", {}, visible(number.name)),
      ...["value", "low", "high", "n"].map((name) => make("td", { class: "number", "data-exact": number[name] }, digits(number[name]))),
      ...places.map((key) => make("td", {}, cut(visible(cellOf(number.at[key]) ?? ""), 60)))));
    details.append(make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Numbers" },
      make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows))));
  }

  function setUpFigures() {
    const near = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) {
        if (isIntersecting) { near.unobserve(target); later(target); }
      }
    }, { rootMargin: "600px" });
    for (const element of all("figure[data-figure]")) {
      one(".plot", element).style.minHeight = `${element.dataset.height}px`;
      near.observe(element);
      for (const button of all("[data-save]", element)) {
        button.hidden = false;
        const name = `${element.dataset.part}-${element.dataset.figure}`;
        button.addEventListener("click", () => SAVES[button.dataset.save](figureOf(element), name, element));
      }
      const details = one(".numbers", element);
      details.addEventListener("toggle", () => fillNumbers(element, details), { once: true });
    }
  }
  function drawAll() {
    for (const part of all(".part")) part.hidden = false;
    return Promise.all(all("figure[data-figure]").map(draw));
  }

  function setUpTheme() {
    const root = document.documentElement;
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const button = document.getElementById("theme");
    const isDark = () => (root.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
    const show = () => { button.textContent = isDark() ? "Light" : "Dark"; button.setAttribute("aria-label", `Use a ${isDark() ? "light" : "dark"} page`); };
    const changed = () => { show(); recolour(); document.dispatchEvent(new Event("recoloured")); };
    button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; changed(); });
    dark.addEventListener("change", changed);
    button.hidden = false;
    show();
  }

  function setUpTabs() {
    const parts = all(".part");
    if (parts.length < 2) return;
    const open = (id, scroll) => {
      const chosen = document.getElementById(id)?.closest(".part") ?? parts[0];
      for (const part of parts) part.hidden = part !== chosen;
      for (const link of all(".tabs [data-tab]")) link.setAttribute("aria-current", String(link.dataset.tab === chosen.id));
      if (scroll) chosen.scrollIntoView();
    };
    for (const link of all("[data-tab]")) {
      link.addEventListener("click", (event) => { event.preventDefault(); open(link.dataset.tab, true); });
    }
    addEventListener("afterprint", () => open(one('.tabs [aria-current="true"]').dataset.tab, false));
    open(location.hash.slice(1), false);
  }

  setUpTheme();
  setUpTabs();
  setUpFigures();
  addEventListener("beforeprint", drawAll);
  return { one, all, read, make, visible, cut, digits, colour, save, drawAll };
})();
