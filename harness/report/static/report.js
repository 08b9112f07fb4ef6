// Sorting, filtering and enlarging. Without this script every page still reads in full, and figures open as files.
"use strict";

function sortKey(cell) {
  const text = cell.dataset.sort ?? cell.textContent.trim();
  const number = text === "" || text === "none" ? NaN : Number(text);
  return { text, number, empty: text === "" || text === "none" };
}

function compare(a, b) {
  if (!Number.isNaN(a.number) && !Number.isNaN(b.number)) return a.number - b.number;
  return a.text.localeCompare(b.text, "en", { numeric: true });
}

function sortBy(table, head, index) {
  const descending = head.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => ({ row, key: sortKey(row.cells[Math.min(index, row.cells.length - 1)]) }));
  rows.sort((a, b) => {
    if (a.key.empty || b.key.empty) return a.key.empty - b.key.empty; // what has no value stays last, either way round
    return descending ? compare(b.key, a.key) : compare(a.key, b.key);
  });
  body.append(...rows.map((one) => one.row));
}

function makeSortable(table) {
  [...table.tHead.rows[0].cells].forEach((head, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sortBy(table, head, index));
    head.append(button);
  });
}

function makeFilterable(table) {
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = "Filter rows, for example: below hardware";
  input.setAttribute("aria-label", "Filter rows");
  const rows = [...table.tBodies[0].rows].map((row) => ({ row, text: row.textContent.toLowerCase() }));
  const count = document.createElement("span");
  count.className = "quiet";
  const apply = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const { row, text } of rows) {
      row.hidden = !words.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = ` ${shown} of ${rows.length} rows`;
  };
  input.addEventListener("input", apply);
  apply();
  const line = document.createElement("p");
  line.className = "filter";
  line.append(input, count);
  table.parentElement.before(line);
}

function enlarge(link) {
  const dialog = document.createElement("dialog");
  const image = document.createElement("img");
  const close = document.createElement("button");
  image.src = link.href;
  image.alt = link.querySelector("img").alt;
  close.type = "button";
  close.textContent = "Close";
  close.addEventListener("click", () => dialog.close());
  image.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  dialog.append(close, image);
  document.body.append(dialog);
  dialog.showModal();
}

document.querySelectorAll("table.sortable").forEach(makeSortable);
document.querySelectorAll("table.filterable").forEach(makeFilterable);
document.querySelectorAll("a.zoom").forEach((link) =>
  link.addEventListener("click", (event) => {
    event.preventDefault();
    enlarge(link);
  }),
);
function openTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) target.open = true;
}
openTarget();
addEventListener("hashchange", openTarget);
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => (one.open = true)));
