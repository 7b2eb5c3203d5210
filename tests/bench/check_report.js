// Runs inside a report, in a frame, and tells the page around it what is wrong; see check_report.sh.
"use strict";
function checkReport() {
  const page = location.pathname.split("/").pop(), wrong = [];
  const say = (what, element) =>
    wrong.push(what + (element ? ": " + element.outerHTML.slice(0, 160) : ""));
  const near = (a, b, tolerance) => Math.abs(a - b) <= tolerance * Math.max(1, Math.abs(b));
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const json = JSON.parse(document.getElementById("result").textContent);
  const at = path => path.split(".").reduce((value, key) => value?.[key], json);
  const seen = element => getComputedStyle(element).display !== "none" &&
    getComputedStyle(element).visibility !== "hidden" && element.getBoundingClientRect().width > 0;

  // Every number is the JSON's, and what is written beside it says the same.
  const units = {B: 1, KiB: 1024, MiB: 1024 ** 2, GiB: 1024 ** 3, TiB: 1024 ** 4, "µs": 1e-6, ms: 1e-3, s: 1, "×": 1,
    sample: 1, samples: 1};
  let numbers = 0, tables = 0;
  for (const element of all("[data-value]")) {
    const value = Number(element.dataset.value);
    if (at(element.dataset.path) !== value) say("not the JSON's number", element);
    if (element.dataset.pathY && at(element.dataset.pathY) !== Number(element.dataset.valueY)) say("y", element);
    numbers++;
    const words = element.querySelector(".tip")?.textContent ?? element.textContent;
    const said = /([\d.,]+) (\p{L}+|×)/u.exec(words.replace(/^.*?(?=[\d.,]+ (?:[KMGT]?i?B|µs|ms|s|×|samples?)\b)/u, ""));
    if (element.classList.contains("point") || element.tagName === "rect") continue;
    if (!said || !(said[2] in units)) {
      say("no number in words: " + words, element);
    } else if (!near(Number(said[1].replaceAll(",", "")) * units[said[2]], value, 0.006) &&
               Math.abs(Number(said[1].replaceAll(",", "")) * units[said[2]] - value) > 0.06 * units[said[2]]) {
      say("says " + said[0] + " for " + value, element);
    }
  }
  // What belongs to a run says its precision, if runs of several are there or it is not f32.
  const precisions = json.config?.precisions ?? [];
  for (const element of all("[data-path^='runs.']")) {
    const precision = json.runs[element.dataset.path.split(".")[1]].precision;
    if (precisions.length < 2 && precision === "f32") continue;
    const names = [element.closest("figure")?.querySelector("h3"), element.closest(".row"), element.closest("li")]
      .map(named => named?.textContent ?? "").concat(element.getAttribute("aria-label") ?? "");
    if (!names.some(name => name.includes(", " + precision))) say("does not say " + precision, element);
  }
  if (precisions.some(p => !document.querySelector("h1 + p")?.textContent.includes(p))) say("the heading lacks a precision");
  // Bars: as long as their numbers, from the left side on, with one scale for a heading's charts.
  const scales = new Map();
  for (const chart of all("svg[role=group]")) {
    if (!chart.querySelector(".bar")) continue;
    const heading = all("h2").filter(h => h.compareDocumentPosition(chart) & Node.DOCUMENT_POSITION_FOLLOWING).pop();
    const width = chart.getBoundingClientRect().width, left = chart.getBoundingClientRect().left;
    for (const row of all(".row", chart)) {
      let sum = 0;
      for (const part of all(".part", row)) {
        const box = part.querySelector("rect").getBoundingClientRect(), value = Number(part.dataset.value);
        const bar = part.classList.contains("bar");
        const scale = (bar ? box.width : box.left + box.width / 2 - left) / width / value;
        if (bar && !near((box.left - left) / width, (scales.get(heading) ?? scale) * sum, 0.004)) say("begins elsewhere", part);
        if (bar) sum += value;
        if (!scales.has(heading) && box.width > 30) scales.set(heading, scale);
        if (scales.has(heading) && Math.abs(scale - scales.get(heading)) * value * width > 1.5) say("has another length", part);
      }
    }
  }
  // Curves: the JSON's points.
  for (const curve of all(".curve[data-path]")) {
    const plot = curve.parentNode, device = at(curve.dataset.path), points = curve.points;
    const height = plot.viewBox.baseVal.height;
    if (points.numberOfItems !== 2 * device.seconds.length) { say("other points", curve); continue; }
    device.seconds.forEach((seconds, i) => {
      const point = points.getItem(2 * i);
      if (!near(point.x / 1000 * plot.dataset.seconds, seconds, 1e-5) ||
          !near((1 - point.y / height) * plot.dataset.most, device.bytes[i], 1e-5)) say("another place of point " + i, curve);
    });
  }
  // Areas: the JSON's categories, each on top of those before it.
  for (const plot of new Set(all(".area").map(area => area.parentNode))) {
    let under = null;
    for (const area of all(".area", plot)) {
      const device = at(area.dataset.path), values = device.categories[area.dataset.name], points = area.points;
      const height = plot.viewBox.baseVal.height, count = device.seconds.length;
      under ??= device.seconds.map(() => 0);
      const over = under.map((value, i) => value + values[i]);
      if (points.numberOfItems !== 4 * count) { say("other points", area); break; }
      const isAt = (point, seconds, value) => near(point.x / 1000 * plot.dataset.seconds, seconds, 1e-4) &&
        Math.abs((1 - point.y / height) * plot.dataset.most - value) <= 1e-4 * plot.dataset.most;
      device.seconds.forEach((seconds, i) => {
        if (!isAt(points.getItem(2 * i), seconds, over[i])) say("another place of point " + i, area);
        if (!isAt(points.getItem(4 * count - 1 - (i > 0 ? 2 * i : 0)), seconds, under[i])) say("another lower point " + i, area);
      });
      under = over;
    }
    const device = at(plot.querySelector(".area").dataset.path);
    if (under.some((value, i) => value !== device.bytes[i])) say("categories do not add up", plot);
  }
  // Points: on a straight line with the ticks.
  for (const chart of all("svg")) {
    const points = all(".point", chart);
    if (points.length === 0) continue;
    const place = e => { const b = e.getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2]; };
    const ticks = all(".tick.middle", chart), rows = all(".tick.right", chart);
    const line = (element, axis, marks, value) => {
      const [a, b] = [marks[0], marks[marks.length - 1]];
      const share = (value - a.textContent) / (b.textContent - a.textContent);
      const wanted = place(a)[axis] + share * (place(b)[axis] - place(a)[axis]);
      if (Math.abs(wanted - place(element.querySelector("circle"))[axis]) > 1.5) say("another place on axis " + axis, element);
    };
    for (const point of points) {
      line(point, 0, ticks, point.dataset.value);
      line(point, 1, rows, point.dataset.valueY);
    }
  }
  // Nothing sticks out, no text is small, none lies over another.
  if (document.documentElement.scrollWidth > innerWidth) say("wider than the window: " + document.documentElement.scrollWidth);
  const texts = all("body *").filter(e => !e.closest("script,style,desc") && seen(e) &&
    [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()));
  for (const text of texts) {
    if (parseFloat(getComputedStyle(text).fontSize) < 11) say("small text", text);
    const box = text.getBoundingClientRect();
    if (!text.closest(".scroll") && (box.left < -0.5 || box.right > innerWidth + 0.5)) say("sticks out", text);
  }
  for (const chart of all("svg[role]")) {
    const boxes = texts.filter(t => chart.contains(t) && t.tagName === "text").map(t => [t, t.getBoundingClientRect()]);
    boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
      if (p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 2 && q.top < p.bottom - 2) {
        say("lies over \"" + b.textContent + "\"", a);
      }
    }));
  }
  // Contrast: text 4.5, colours of charts 3, against the page and the bands.
  const light = colour => {
    const channels = colour.match(/[\d.]+/g).slice(0, 3).map(c => c / 255)
      .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2];
  };
  const contrast = (a, b) => {
    const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const ground = getComputedStyle(document.body).backgroundColor;
  const band = document.querySelector(".band");
  const grounds = band ? [ground, getComputedStyle(band).fill] : [ground];
  for (const text of texts) {
    const style = getComputedStyle(text);
    for (const under of text.closest("svg,button") ? grounds : [ground]) {
      const ratio = contrast(text.closest("svg") ? style.fill : style.color, under);
      if (ratio < 4.5) say("contrast " + ratio.toFixed(2), text);
    }
  }
  for (const mark of all("svg rect[class^=c-], svg rect[class^=p-], .area, .mark rect, .limit rect, .curve[data-path], circle")) {
    const style = getComputedStyle(mark);
    const ratio = contrast(mark.matches(".curve") ? style.stroke : style.fill, ground);
    if (ratio < 3) say("contrast of a colour " + ratio.toFixed(2), mark);
  }
  // Colours of a legend, phases and categories alike, are told apart: a distance in CIELAB.
  const lab = colour => {
    const [r, g, b] = colour.match(/[\d.]+/g).slice(0, 3).map(c => c / 255)
      .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    const [x, y, z] = [(0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505, 0.2126 * r + 0.7152 * g + 0.0722 * b,
      (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089].map(t => t > 0.008856 ? Math.cbrt(t) : 7.787 * t + 16 / 116);
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
  };
  const keys = new Map();
  for (const key of all(".legend i")) {
    if (/(^| )[cp]-(?!mark|limit)/.test(key.className)) keys.set(key.className, lab(getComputedStyle(key).backgroundColor));
  }
  [...keys].forEach(([a, p], i) => [...keys].slice(i + 1).forEach(([b, q]) => {
    if (Math.hypot(...p.map((v, k) => v - q[k])) < 15) say("one colour for " + a + " and " + b);
  }));
  for (const mark of all("[class*='p-forward'], [class*='c-parameters']")) {
    const fill = getComputedStyle(mark).fill;
    if (mark.tagName === "rect" && fill === "rgb(0, 0, 0)") say("no colour", mark);
  }
  // A table that is cut off says that it scrolls, and shows a shadow; another one does not.
  for (const box of all(".scroll")) {
    const hint = box.previousElementSibling, cut = box.scrollWidth > box.clientWidth;
    if (hint?.className.split(" ")[1] !== "hint" || seen(hint) !== cut) say("a table is cut: " + cut, box);
    if (!getComputedStyle(box).backgroundImage.includes("gradient")) say("no shadow", box);
    if (cut) tables++;
  }
  // Names for those who do not see it.
  const ids = new Set();
  for (const chart of all("svg[role]")) {
    const text = document.getElementById(chart.getAttribute("aria-describedby"));
    if (!chart.getAttribute("aria-label") || !text?.textContent || ids.has(text.id)) say("no text beside it", chart);
    ids.add(text?.id);
    if (chart.getAttribute("role") === "img" && chart.querySelector("[tabindex]")) say("a picture with parts", chart);
  }
  for (const part of all("svg [tabindex]")) if (!part.getAttribute("aria-label")) say("no name", part);
  // The keyboard: one stop a chart, arrows within, and what has the focus says its number in its place.
  for (const chart of all("svg[role=group]")) {
    const parts = all("[tabindex]", chart);
    if (all("[tabindex='0']", chart).length !== 1) say("not one stop", chart);
    parts[0].focus();
    parts.forEach((part, i) => {
      if (document.activeElement !== part) say("the focus is elsewhere", part);
      const tip = part.querySelector(".tip"), box = tip.getBoundingClientRect();
      if (!seen(tip) || box.left < 0 || box.right > innerWidth) say("no tip at the focus", part);
      if (part.closest(".row") && all(".label", part.closest(".row")).some(seen)) say("a label under the tip", part);
      part.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}));
      if (i + 1 < parts.length && document.activeElement === part) say("arrows do not move", part);
    });
    document.activeElement.blur();
  }
  // Tables sort; what is no number comes last.
  for (const table of all("table")) {
    for (const button of all("th button", table)) {
      const column = button.parentNode.cellIndex;
      for (const sign of [1, -1]) {
        button.click();
        const values = [...table.tBodies[0].rows].map(r => r.cells[column].textContent);
        const sorted = values.every((v, i) => i === 0 || (button.parentNode.classList.contains("words")
          ? sign * values[i - 1].localeCompare(v) <= 0
          : isNaN(parseFloat(v)) || sign * (parseFloat(v) - parseFloat(values[i - 1])) >= 0));
        if (!sorted) say("not sorted by " + button.textContent + ": " + values);
      }
    }
  }
  // The file that is handed out, read as it is made: a blob is read later.
  let file = null;
  window.Blob = class { constructor(parts) { this.parts = parts; } };
  URL.createObjectURL = made => { file = made.parts.join(""); return "about:blank"; };
  HTMLAnchorElement.prototype.click = () => {};
  document.querySelector("button.download").click();
  if (file === null) say("no download");
  else if (file.trim() !== document.getElementById("result").textContent.trim()) say("another file");
  // What came from outside is text.
  if (document.querySelector("img, iframe, object, link, script[src]")) say("an element from nowhere");
  return {page, wrong, numbers, tables, charts: all("svg[role]").length, dark: matchMedia("(prefers-color-scheme: dark)").matches,
          width: innerWidth};
}
// All of it before the frame's load event has ended, for which that of the page around it waits.
window.addEventListener("load", () => {
  let answer;
  try {
    answer = checkReport();
  } catch (error) {
    answer = {page: location.pathname, wrong: [String(error.stack)]};
  }
  answer.wrong.push(...window.reportErrors);
  parent.take(answer);
});
