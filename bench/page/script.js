"use strict";
// Tables: a button in each heading sorts; what is no number comes last.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      const words = head.classList.contains("words");
      const value = row => {
        const text = row.cells[column].textContent;
        return words ? text : parseFloat(text);
      };
      const order = (a, b) => {
        const x = value(a), y = value(b);
        if (words) return down ? y.localeCompare(x) : x.localeCompare(y);
        if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);
        return down ? y - x : x - y;
      };
      for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      body.append(...[...body.rows].sort(order));
    });
  });
}
// A table that is wider than the page says that it scrolls.
for (const box of document.querySelectorAll(".scroll")) {
  const hint = document.createElement("p");
  hint.className = "soft hint";
  hint.textContent = "More columns to the right: the table scrolls sideways.";
  box.before(hint);
  const look = () => hint.classList.toggle("seen", box.scrollWidth > box.clientWidth);
  new ResizeObserver(look).observe(box);
  look();
}
// Charts: one tab stop each, arrow keys within.
for (const chart of document.querySelectorAll("svg")) {
  const parts = [...chart.querySelectorAll("[tabindex]")];
  const move = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1};
  chart.addEventListener("keydown", event => {
    const at = parts.indexOf(document.activeElement);
    if (at < 0 || !(event.key in move)) return;
    const next = parts[at + move[event.key]];
    event.preventDefault();
    if (!next) return;
    parts[at].setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });
}
// The result as a file.
const result = document.getElementById("result");
const button = document.createElement("button");
button.type = "button";
button.className = "download";
button.textContent = "Download " + result.dataset.name;
button.addEventListener("click", () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([result.textContent.trim() + "\n"], {type: "application/json"}));
  link.download = result.dataset.name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
});
document.querySelector("main").append(button);
