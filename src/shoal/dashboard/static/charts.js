// Charts as SVG. Everything is drawn anew each time: there are a few hundred points.

const NS = "http://www.w3.org/2000/svg";
export const USES = ["computing", "exchanging", "waiting", "reading", "callbacks", "other"];

export function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

export function number(value, digits = 0) {
  return value.toLocaleString("en-US", { maximumFractionDigits: digits });
}

export function precise(value) {
  if (value === null || value === undefined) return "not finite";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2);
  return value.toLocaleString("en-US", { maximumSignificantDigits: 4 });
}

export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

// Round numbers that span what there is.
function ticks(low, high, count) {
  if (!(high > low)) { const pad = Math.abs(high) * 0.1 || 1; low -= pad; high += pad; }
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  for (let at = Math.floor(low / step); at * step < high + step * 0.999; at++) found.push(at * step);
  return found;
}

// series: [{name, values, css, area}]; marks: seconds at which somebody was lost.
export function lines(box, at, series, { zero = false, marks = [], show = precise } = {}) {
  const values = series.flatMap((one) => one.values.filter((value) => value !== null));
  if (at.length < 2 || !values.length) {
    box.replaceChildren(Object.assign(document.createElement("p"), { className: "empty", textContent: "Nothing to show yet." }));
    return;
  }
  const width = box.clientWidth || 400, height = box.clientHeight || 180;
  const rows = ticks(zero ? 0 : Math.min(...values), Math.max(...values), 3);
  const low = rows[0], high = rows.at(-1), first = at[0], last = at.at(-1);
  const left = 8 + 6.6 * Math.max(...rows.map((row) => show(row).length)), right = width - 6, top = 8, bottom = height - 22;
  const x = (time) => left + (right - left) * (time - first) / (last - first || 1);
  const y = (value) => bottom - (bottom - top) * (value - low) / (high - low || 1);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  for (const row of rows) {
    drawing.append(svg("line", { class: "grid", x1: left, x2: right, y1: y(row), y2: y(row) }),
      svg("text", { x: left - 8, y: y(row) + 4, "text-anchor": "end" }, show(row)));
  }
  drawing.append(svg("text", { x: left, y: height - 4 }, clock(first)), svg("text", { x: right, y: height - 4, "text-anchor": "end" }, clock(last)));
  for (const mark of marks.filter((one) => one >= first && one <= last)) {
    drawing.append(svg("line", { class: "mark", x1: x(mark), x2: x(mark), y1: top, y2: bottom }));
  }
  for (const one of series) {
    const pieces = [[]];
    one.values.forEach((value, i) => (value === null ? pieces.push([]) : pieces.at(-1).push(`${x(at[i]).toFixed(1)},${y(value).toFixed(1)}`)));
    for (const piece of pieces.filter((points) => points.length)) {
      const path = `M${piece.join("L")}`;
      const ends = [piece[0], piece.at(-1)].map((point) => point.split(",")[0]);
      if (one.area) drawing.append(svg("path", { class: `area ${one.css}`, d: `${path}L${ends[1]},${bottom}L${ends[0]},${bottom}Z` }));
      drawing.append(svg("path", { class: `curve ${one.css}`, d: path }));
    }
  }
  box.dataset.points = at.length;
  const kept = box.querySelector(".tip");
  box.replaceChildren(drawing);
  if (kept) box.append(kept);
  box.onpointermove = (event) => point(box, drawing, event.offsetX, at, series, { x, top, bottom, width, show });
  box.onpointerleave = () => box.querySelectorAll(".tip, .cursor").forEach((one) => one.remove());
}

function point(box, drawing, offset, at, series, { x, top, bottom, width, show }) {
  let nearest = 0;
  at.forEach((time, i) => { if (Math.abs(x(time) - offset) < Math.abs(x(at[nearest]) - offset)) nearest = i; });
  const told = series.map((one) => (series.length > 1 ? `${one.name} ` : "") + show(one.values[nearest]));
  const tip = box.querySelector(".tip") || box.appendChild(Object.assign(document.createElement("div"), { className: "tip" }));
  tip.textContent = `${clock(at[nearest])}   ${told.join("   ")}`;
  const across = x(at[nearest]);
  tip.style.left = across < width / 2 ? `${across + 10}px` : "auto";
  tip.style.right = across < width / 2 ? "auto" : `${width - across + 10}px`;
  drawing.querySelectorAll(".cursor").forEach((one) => one.remove());
  drawing.append(svg("line", { class: "cursor", x1: across, x2: across, y1: top, y2: bottom }));
}

export function timeline(box, facts) {
  const width = box.clientWidth || 600, row = 24, left = width < 520 ? 66 : 84, height = facts.rows.length * row + 22;
  box.style.height = `${height}px`;
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  const scale = (width - left) / (facts.seconds || 1);
  facts.rows.forEach((member, i) => {
    drawing.append(svg("text", { x: 0, y: i * row + 9 }, member.member));
    for (const [start, seconds, use, phase, step] of member.spans) {
      const bar = svg("rect", { class: use, x: left + start * scale, y: i * row, width: Math.max(0.3, seconds * scale), height: row - 6 });
      bar.append(svg("title", {}, `${phase}, step ${number(step)}: ${precise(seconds * 1000)} ms`));
      drawing.append(bar);
    }
  });
  const end = `${precise(facts.seconds * 1000)} ms`;
  drawing.append(svg("text", { x: 0, y: height - 8 }, "step"), svg("text", { x: width, y: height - 8, "text-anchor": "end" }, end));
  let shown = -Infinity;
  for (const [step, start] of begins(facts.rows)) {
    const at = left + start * scale;
    drawing.append(svg("line", { class: "tick", x1: at, x2: at, y1: 0, y2: height - 18 }));
    if (at - shown > 46 && at < width - 100) { drawing.append(svg("text", { x: at, y: height - 8 }, number(step))); shown = at; }
  }
  box.replaceChildren(drawing);
}

// When each step began on the member that was there first.
function begins(rows) {
  const found = new Map();
  for (const [start, , , , step] of rows[0]?.spans ?? []) if (!found.has(step)) found.set(step, start);
  return found;
}
