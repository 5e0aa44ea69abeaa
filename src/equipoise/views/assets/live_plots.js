// Plots of logged points and of estimates. Texts of others reach Plotly only as labels that the server has escaped.
const DRAWN = 800; // points of a curve; of more, each stretch's lowest and highest
const CONFIG = {
  displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  showSendToCloud: false, plotlyServerURL: "", // Plotly would offer to upload a chart to its makers
};

export function ordered(curve) {
  // Steps may come late or twice: by step, and the last value counts.
  if (!curve) return { steps: [], values: [] };
  if (curve.mixed) {
    const last = new Map(curve.steps.map((step, i) => [step, curve.values[i]]));
    curve.steps = [...last.keys()].sort((a, b) => a - b);
    curve.values = curve.steps.map((step) => last.get(step));
    curve.mixed = false;
  }
  return curve;
}

export function thin(curve, most = DRAWN) {
  const { steps, values } = curve;
  if (steps.length <= most) return { steps: [...steps], values: [...values] }; // Plotly sees a change only in another array
  const keep = new Set([0, steps.length - 1]);
  const stretches = most / 2 - 1;
  for (let s = 0; s < stretches; s += 1) {
    const from = Math.floor((s * steps.length) / stretches);
    const to = Math.floor(((s + 1) * steps.length) / stretches);
    let low = from, high = from;
    for (let i = from; i < to; i += 1) {
      if (values[i] < values[low]) low = i;
      if (values[i] > values[high]) high = i;
    }
    keep.add(low).add(high);
  }
  const kept = [...keep].sort((a, b) => a - b);
  return { steps: kept.map((i) => steps[i]), values: kept.map((i) => values[i]) };
}

export function digits(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return value.toLocaleString("en", { maximumFractionDigits: size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3 });
}

export function share(value) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)}%`;
}

function style(run, extra = {}) {
  const { colour, dash, symbol } = run.head.look;
  return { line: { color: colour, dash, width: 2 }, marker: { color: colour, symbol, size: 6 }, ...extra };
}

export function logged(run, curve) {
  const { steps, values } = thin(ordered(curve));
  return {
    type: "scatter", x: steps, y: values, name: run.head.label, mode: steps.length > 40 ? "lines" : "lines+markers",
    hovertext: steps.map((step, i) => `${run.head.label}<br>step ${step}: ${digits(values[i])}, logged`), hoverinfo: "text",
    ...style(run),
  };
}

export function groups(run) {
  const rows = run.judged ? run.judged.groups : [];
  const half = (i, bound) => rows.map((row) => (row[bound] === null ? 0 : Math.abs(row[bound] - row[i])));
  return {
    type: "scatter", x: rows.map(([first, last]) => (first + last) / 2), y: rows.map((row) => row[2]), mode: "lines+markers",
    name: `${run.head.label} (measured)`, hoverinfo: "text",
    hovertext: rows.map(([first, last, value, low, high, n]) =>
      `${run.head.label}<br>step ${first === last ? first : `${first}–${last}`}: ${share(value)}, measured` +
      `<br>95% interval ${share(low)} to ${share(high)}, n = ${n}`),
    error_y: { type: "data", symmetric: false, array: half(2, 4), arrayminus: half(2, 3), thickness: 1, width: 2, color: run.head.look.colour },
    ...style(run, { line: { color: run.head.look.colour, dash: run.head.look.dash, width: 1 } }),
  };
}

export function trail(run, ones, deep, k) {
  // Evaluations at which both numbers were logged, in order of steps.
  const a = ordered(ones), b = ordered(deep);
  const at = new Map(b.steps.map((step, i) => [step, b.values[i]]));
  const steps = a.steps.filter((step) => at.has(step));
  const x = steps.map((step) => a.values[a.steps.indexOf(step)]);
  const y = steps.map((step) => at.get(step));
  const look = style(run);
  look.marker = { ...look.marker, size: steps.map((_, i) => (i === steps.length - 1 ? 11 : 5)) };
  return {
    type: "scatter", x, y, name: run.head.label, mode: "lines+markers", hoverinfo: "text", ...look,
    hovertext: steps.map((step, i) => `${run.head.label}<br>step ${step}: pass@1 ${digits(x[i])}, pass@${k} ${digits(y[i])}, logged`),
  };
}

export function measuredPass(run, k) {
  const found = run.judged ? run.judged.frontier : [];
  const one = found.find((number) => number.at.k === 1), deep = found.find((number) => number.at.k === k);
  if (!one || !deep) return null;
  const bars = (number) => (number.low === null ? undefined : {
    type: "data", symmetric: false, array: [number.high - number.value], arrayminus: [number.value - number.low],
    thickness: 1.2, width: 4, color: run.head.look.colour });
  const told = (number) => `${digits(number.value)} [${digits(number.low)}, ${digits(number.high)}]`;
  return {
    type: "scatter", x: [one.value], y: [deep.value], mode: "markers", hoverinfo: "text", name: `${run.head.label} (measured)`,
    marker: { color: run.head.look.colour, symbol: "diamond-open", size: 11, line: { width: 2 } }, error_x: bars(one), error_y: bars(deep),
    hovertext: [`${run.head.label}, last evaluation, measured<br>pass@1 ${told(one)}<br>pass@${k} ${told(deep)}<br>95% intervals, n = ${one.n}`],
    showlegend: false,
  };
}

export function draw(where, traces, { x, y, percent = "" }) {
  const ink = getComputedStyle(document.body).getPropertyValue("--soft").trim();
  const grid = getComputedStyle(document.body).getPropertyValue("--line").trim();
  const axis = (text, percent) => ({
    title: { text, font: { size: 12 } }, gridcolor: grid, linecolor: grid, zerolinecolor: grid, automargin: true, exponentformat: "power",
    ...(percent ? { tickformat: ".0%" } : {}),
  });
  const full = traces.filter((trace) => trace && trace.x.length);
  where.classList.toggle("empty", !full.length);
  const layout = {
    xaxis: axis(x, percent.includes("x")), yaxis: axis(y, percent.includes("y")), uirevision: y, hovermode: "closest",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, size: 12, family: "system-ui, sans-serif" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: ink, activecolor: ink }, margin: { l: 50, r: 8, t: 8, b: 40 }, showlegend: false,
    ...(full.length ? {} : { xaxis: { visible: false }, yaxis: { visible: false } }),
  };
  return window.Plotly.react(where, full, layout, CONFIG);
}
