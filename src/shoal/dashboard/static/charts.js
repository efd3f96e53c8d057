// Charts as SVG. Everything is drawn anew each time, in few nodes: the browser may share its cores with the training.

const NS = "http://www.w3.org/2000/svg";
export const USES = ["computing", "exchanging", "waiting", "reading", "callbacks", "other"];

export function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// Made once: a format takes longer to make than a chart to draw.
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const fourDigits = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 4 });
const timeOfDay = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });

export function number(value) {
  return whole.format(value);
}

export function precise(value) {
  if (value === null || value === undefined) return "not finite";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2);
  return fourDigits.format(value);
}

export function clock(seconds) {
  return timeOfDay.format(seconds * 1000);
}

// A box's width and height, as they were last seen: to ask after a change would lay out the whole page.
const sizes = new Map();
const observer = new ResizeObserver((entries) => { for (const { target } of entries) sizes.set(target, [target.clientWidth, target.clientHeight]); });
addEventListener("resize", () => sizes.clear());

function sizeOf(box) {
  if (!sizes.has(box)) {
    sizes.set(box, [box.clientWidth, box.clientHeight]);
    observer.observe(box);
  }
  return sizes.get(box);
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
  const [width, height] = sizeOf(box).map((pixels, i) => pixels || [400, 180][i]);
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
  const across = x(at[nearest]);
  tip(box, `${clock(at[nearest])}   ${told.join("   ")}`, across, width);
  drawing.querySelectorAll(".cursor").forEach((one) => one.remove());
  drawing.append(svg("line", { class: "cursor", x1: across, x2: across, y1: top, y2: bottom }));
}

function tip(box, text, across, width) {
  const shown = box.querySelector(".tip") || box.appendChild(Object.assign(document.createElement("div"), { className: "tip" }));
  shown.textContent = text;
  shown.style.left = across < width / 2 ? `${across + 10}px` : "auto";
  shown.style.right = across < width / 2 ? "auto" : `${width - across + 10}px`;
}

const LAYERS = [...USES.filter((use) => use !== "waiting"), "waiting"]; // waits lie over that in which somebody waits

// One path for all bars of a kind: hundreds of nodes would take longer to lay out than everything else on the page.
export function timeline(box, facts) {
  const row = 24, height = facts.rows.length * row + 22, width = sizeOf(box)[0] || 600, left = width < 520 ? 66 : 84;
  if (box.style.height !== `${height}px`) box.style.height = `${height}px`;
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  const scale = (width - left) / (facts.seconds || 1), bars = new Map(LAYERS.map((use) => [use, []]));
  facts.rows.forEach((member, i) => {
    drawing.append(svg("text", { x: 0, y: i * row + 9 }, member.member));
    for (const [start, seconds, use] of member.spans) {
      const across = Math.max(0.3, seconds * scale).toFixed(2);
      bars.get(use)?.push(`M${(left + start * scale).toFixed(2)} ${i * row}h${across}v${row - 6}h-${across}z`);
    }
  });
  for (const [use, found] of bars) if (found.length) drawing.append(svg("path", { class: use, d: found.join("") }));
  const end = `${precise(facts.seconds * 1000)} ms`;
  drawing.append(svg("text", { x: 0, y: height - 8 }, "step"), svg("text", { x: width, y: height - 8, "text-anchor": "end" }, end));
  let shown = -Infinity;
  for (const [step, start] of begins(facts.rows)) {
    const at = left + start * scale;
    drawing.append(svg("line", { class: "tick", x1: at, x2: at, y1: 0, y2: height - 18 }));
    if (at - shown > 46 && at < width - 100) { drawing.append(svg("text", { x: at, y: height - 8 }, number(step))); shown = at; }
  }
  const kept = box.querySelector(".tip");
  box.replaceChildren(drawing);
  if (kept) box.append(kept);
  box.onpointermove = (event) => {
    const edge = box.getBoundingClientRect(), across = event.clientX - edge.left;
    const bar = barAt(facts.rows[Math.floor((event.clientY - edge.top) / row)], (across - left) / scale);
    if (!bar) return box.onpointerleave();
    const [, seconds, , phase, step] = bar;
    tip(box, `${phase}, step ${number(step)}: ${precise(seconds * 1000)} ms`, across, width);
  };
  box.onpointerleave = () => box.querySelector(".tip")?.remove();
}

// The last that lies there.
function barAt(member, at) {
  return member?.spans.findLast(([start, seconds]) => start <= at && at <= start + seconds);
}

// When each step began on the member that was there first.
function begins(rows) {
  const found = new Map();
  for (const [start, , , , step] of rows[0]?.spans ?? []) if (!found.has(step)) found.set(step, start);
  return found;
}
