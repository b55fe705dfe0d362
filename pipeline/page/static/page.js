// What moves on the page by itself: keys, tables on a phone, what is copied, thresholds and curves. Everything else is
// links, forms and htmx.
"use strict";

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
  const rel = { n: "next", p: "prev" }[event.key];
  const link = rel && document.querySelector(`a[rel=${rel}]`);
  if (link) link.click();
  if (event.key === "/") {
    event.preventDefault();
    document.getElementById("q").focus();
  }
});

// On a phone each row of a table is a card, whose cells say what their columns are.
function asCards() {
  for (const table of document.querySelectorAll("table:not(.bars, .cards)")) {
    const names = [...table.rows[0]?.cells ?? []];
    if (!names.length || names.some((cell) => cell.tagName !== "TH") || table.querySelector("[colspan]")) continue;
    for (const row of [...table.rows].slice(1)) {
      [...row.cells].forEach((cell, number) => {
        cell.dataset.label = names[number]?.querySelector(".hidden") ? "" : names[number]?.textContent ?? "";
        if (!cell.hasChildNodes()) return;
        const inside = Object.assign(document.createElement("div"), { className: "cell" });
        inside.append(...cell.childNodes);
        cell.append(inside);
      });
    }
    table.classList.add("cards");
  }
}

// What scrolls by itself can be reached with the keyboard.
function reachable() {
  for (const table of document.querySelectorAll("table")) {
    if (table.scrollWidth > table.clientWidth && !table.querySelector("a, button, input")) table.tabIndex = 0;
  }
}
addEventListener("resize", reachable);

// Ids, hashes and commands can be copied. Without a secure context (a proxy without TLS) there is no clipboard but
// that of the selection.
async function copy(text, near) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  getSelection().selectAllChildren(near);
  if (!document.execCommand("copy")) throw new Error("nothing was copied");
}

function copied() {
  for (const code of document.querySelectorAll("code.command, code.copied")) {
    const after = code.closest("a") ?? code;
    if (after.nextElementSibling?.matches("button.copy")) continue;
    const button = Object.assign(document.createElement("button"), { type: "button", className: "copy", textContent: "Copy" });
    button.setAttribute("aria-label", `Copy ${code.textContent.slice(0, 60)}`);
    button.addEventListener("click", async () => {
      try {
        await copy(code.textContent, code);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Copy: select it and press Ctrl+C";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    after.after(" ", button);
  }
}

// The newest lines of a log are its last.
function atTheEnd() {
  for (const log of document.querySelectorAll("pre.log")) log.scrollTop = log.scrollHeight;
}

function dress() {
  atTheEnd();
  asCards();
  reachable();
  copied();
}
document.addEventListener("DOMContentLoaded", dress);
document.addEventListener("htmx:afterSettle", dress);

// A threshold that is dragged: the server has sent the figures of each place that it can stand at.
// A threshold that is written may be none of them: the slider then goes to the nearest place.
document.addEventListener("input", (event) => {
  const form = event.target.closest(".dragged");
  if (!form) return;
  const range = form.querySelector("input[type=range]"), field = form.querySelector("input[name=threshold]");
  const options = JSON.parse(form.dataset.options);
  if (event.target === field) {
    if (field.value === "") return;
    const off = (number) => Math.abs(Number(options[number][0].replaceAll(",", "")) - Number(field.value));
    let nearest = Number(range.min);
    for (let number = nearest; number <= Number(range.max); number += 1) if (off(number) < off(nearest)) nearest = number;
    range.value = nearest;
    if (off(nearest) > 0) {
      form.querySelector("output").textContent = `threshold ${field.value}: the button tells what it changes`;
      return;
    }
  }
  const at = Number(range.value);
  const [threshold, numRejected, numKept, change] = options[at];
  const isSet = at === Number(form.dataset.chosen);
  const words = `threshold ${threshold}${isSet ? " (as it is set)" : ""}: rejects ${numRejected.toLocaleString("en")}, `
    + `${numKept.toLocaleString("en")} survive the filters (${change > 0 ? "+" : ""}${change.toLocaleString("en")})`;
  form.querySelector("output").textContent = words;
  if (event.target === range) field.value = isSet ? field.defaultValue : threshold.replaceAll(",", "");
  range.setAttribute("aria-valuetext", words);
  // Bar number `line` stands behind the threshold that is set, which is option number `chosen`.
  const line = Number(form.dataset.line) + at - Number(form.dataset.chosen);
  form.closest(".rule").querySelectorAll(".column").forEach((column, number) => {
    const isRejected = (number < line) === Boolean(form.dataset.low);
    column.classList.toggle("at", number === line);
    for (const part of column.children) {
      part.classList.toggle("lost", isRejected);
      part.classList.toggle("out", !isRejected);
    }
  });
});

// The curves of a run: one plot for each, on a common axis of steps.
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Figures of any size: a learning rate has its first figure in the fourth place.
function figure(value) {
  return value == null ? "–" : value.toLocaleString("en", { maximumSignificantDigits: 5 });
}

function plot(box, title, steps, series) {
  const ink = colour("--ink"), line = colour("--line");
  const strokes = ["--blue", "--teal", "--red", "--amber", "--soft"].map(colour);
  const axis = { stroke: ink, grid: { stroke: line }, ticks: { stroke: line }, values: (_, ticks) => ticks.map(figure) };
  const options = {
    title, width: box.clientWidth || 500, height: 240, scales: { x: { time: false } }, axes: [axis, { ...axis, size: 70 }],
    series: [{ label: "step" }, ...series.map(([label], number) => ({ label, stroke: strokes[number % 5], width: 1.5, value: (_, at) => figure(at) }))],
  };
  return new uPlot(options, [steps, ...series.map(([, values]) => values)], box);
}

let drawn = [];
async function draw() {
  for (const place of document.querySelectorAll(".curves")) {
    const run = await (await fetch(place.dataset.src)).json();
    const measured = Object.entries(run.curves).filter(([, values]) => values.some((value) => value !== null));
    const plots = measured.map(([name, values]) => [name, [[name, values]]]);
    const mixture = Object.entries(run.mixture);
    if (mixture.length) plots.push(["tokens a step, by source", mixture]);
    // All boxes are there before the first plot, so that each has the width that it keeps.
    const boxes = plots.map(() => Object.assign(document.createElement("div"), { className: "curve" }));
    place.replaceChildren(...boxes);
    drawn = plots.map(([title, series], number) => plot(boxes[number], title, run.steps, series));
  }
}
draw();
addEventListener("resize", () => {
  for (const curve of drawn) curve.setSize({ width: curve.root.parentElement.clientWidth, height: curve.height });
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
