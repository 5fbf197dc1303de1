"use strict";
// Figures of a page: values under the pointer, and zoom by buttons, wheel, pinch or keys.
const SVG = "http://www.w3.org/2000/svg";
const digits = value => Math.abs(value) < 1e-3 && value ? value.toExponential(2) : String(+value.toPrecision(4));
const short = value => value === null || value === undefined ? "–" : digits(value);

function valueAt(curve, x) {  // the value of a curve at x, with its band where there is one
  const {kind, band} = curve, xs = curve.x, ys = curve.y;
  if (kind === "line") {
    const i = xs.findIndex((left, k) => left <= x && x <= xs[k + 1]);
    if (i < 0 || ys[i] === null || ys[i + 1] === null) return null;
    return short(ys[i] + (x - xs[i]) / (xs[i + 1] - xs[i] || 1) * (ys[i + 1] - ys[i]));
  }
  const nearest = () => xs.reduce((best, at, k) => Math.abs(at - x) < Math.abs(xs[best] - x) ? k : best, 0);
  const i = kind === "points" ? nearest() : xs.findIndex((left, k) => left <= x && x <= xs[k + 1]);
  if (i < 0 || ys[i] === null) return null;
  return short(ys[i]) + (band ? ` [${short(band[0][i])}, ${short(band[1][i])}]` : "");
}

function line(parent, label, value, colour) {
  const row = parent.appendChild(document.createElement("div"));
  row.appendChild(document.createElement("i")).style.background = colour;
  row.appendChild(document.createElement("span")).textContent = label;
  row.appendChild(document.createElement("b")).textContent = value;
}

for (const figure of document.querySelectorAll("figure.plot")) {
  const view = figure.querySelector(".view"), svg = view.querySelector("svg"), readout = view.querySelector(".readout");
  const panels = JSON.parse(figure.querySelector("script").textContent);
  const home = svg.getAttribute("viewBox").split(" ").map(Number);
  const pointers = new Map();
  let box = home, cross = [];

  const place = event => new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  const apart = (a, b) => Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
  const between = (low, value, high) => Math.min(Math.max(value, low), high);

  function show(x, y, width, height) {  // never beyond the figure, never smaller than a twentieth of it
    box = [between(0, x, home[2] - width), between(0, y, home[3] - height), width, height];
    svg.setAttribute("viewBox", box.join(" "));
    view.classList.toggle("zoomed", width < home[2]);
  }
  function zoom(factor, at) {
    const scale = factor ? between(home[2] / 20, box[2] / factor, home[2]) / box[2] : home[2] / box[2];
    at = at || {x: box[0] + box[2] / 2, y: box[1] + box[3] / 2};
    show(at.x - (at.x - box[0]) * scale, at.y - (at.y - box[1]) * scale, box[2] * scale, box[3] * scale);
  }
  function leave() {
    cross.forEach(mark => mark.remove());
    cross = [];
    readout.hidden = true;
  }
  function hover(event) {
    leave();
    const at = place(event);
    const hit = panels.find(({box: [x0, y0, x1, y1]}) => at.x >= x0 && at.x <= x1 && at.y >= y0 && at.y <= y1);
    if (!hit) return;
    const [low, high] = hit.log ? hit.range.map(Math.log10) : hit.range;
    const along = low + (high - low) * (at.x - hit.box[0]) / (hit.box[2] - hit.box[0]);
    const x = hit.log ? 10 ** along : along;
    readout.replaceChildren();
    readout.appendChild(document.createElement("div")).textContent = `${hit.label} = ${short(x)}`;
    for (const panel of panels.filter(other => other.label === hit.label && Math.abs(other.box[0] - hit.box[0]) < 1)) {
      const mark = svg.appendChild(document.createElementNS(SVG, "line"));
      for (const [name, value] of Object.entries({x1: at.x, x2: at.x, y1: panel.box[1], y2: panel.box[3], class: "cross"}))
        mark.setAttribute(name, value);
      cross.push(mark);
      for (const curve of panel.curves) {
        const value = valueAt(curve, x);
        if (value !== null) line(readout, curve.label, value, curve.colour);
      }
    }
    readout.hidden = false;  // beside the pointer, inside the figure
    const frame = view.getBoundingClientRect(), [across, down] = [event.clientX - frame.left, event.clientY - frame.top];
    const left = across > frame.width / 2 ? across - readout.offsetWidth - 14 : across + 14;
    readout.style.left = `${between(0, left, Math.max(frame.width - readout.offsetWidth, 0))}px`;
    readout.style.top = `${between(0, down - 20, Math.max(frame.height - readout.offsetHeight, 0))}px`;
  }

  view.addEventListener("pointerdown", event => {
    pointers.set(event.pointerId, event);
    if (box[2] < home[2]) view.setPointerCapture(event.pointerId);
    hover(event);
  });
  view.addEventListener("pointermove", event => {
    const before = pointers.get(event.pointerId);
    const other = [...pointers.values()].find(pointer => pointer.pointerId !== event.pointerId);
    if (before && other) {
      zoom(apart(event, other) / Math.max(apart(before, other), 1), place(other));
    } else if (before && box[2] < home[2]) {
      const [from, to] = [place(before), place(event)];
      show(box[0] + from.x - to.x, box[1] + from.y - to.y, box[2], box[3]);
    }
    if (before) pointers.set(event.pointerId, event);
    hover(event);
  });
  for (const name of ["pointerup", "pointercancel", "pointerleave"])
    view.addEventListener(name, event => { pointers.delete(event.pointerId); if (name !== "pointerup") leave(); });
  view.addEventListener("wheel", event => {  // the page goes on scrolling unless the reader has chosen this figure
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== view) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 400), place(event));
    hover(event);
  }, {passive: false});
  view.addEventListener("dblclick", () => zoom(0));
  view.addEventListener("keydown", event => {
    const step = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
    const factor = {"+": 1.5, "-": 1 / 1.5, "0": 0, Escape: 0}[event.key];
    if (factor !== undefined) zoom(factor);
    else if (step && box[2] < home[2]) show(box[0] + step[0] * box[2] / 8, box[1] + step[1] * box[3] / 8, box[2], box[3]);
    else return;
    event.preventDefault();
  });
  figure.querySelectorAll("button").forEach(b => b.addEventListener("click", () => zoom(+b.dataset.zoom)));
  window.addEventListener("beforeprint", () => { zoom(0); leave(); });
}
