"use strict";
// Sorts and filters tables, enlarges timelines and opens icicles. The page is complete without it.

function sortable(table) {
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];
  const original = [...body.rows];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "Sort by this column";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const was = heading.getAttribute("aria-sort");
      const numbers = original.some(row => row.cells[column].dataset.value !== undefined);
      // Numbers start with the largest, text with "a"; a third click restores the order of the profile.
      const [first, second] = numbers ? ["descending", "ascending"] : ["ascending", "descending"];
      const now = was === first ? second : was === second ? null : first;
      headings.forEach(other => other.removeAttribute("aria-sort"));
      if (now) heading.setAttribute("aria-sort", now);
      body.append(...(now ? sorted(original, column, numbers, now === "ascending" ? 1 : -1) : original));
    });
  });
}

function sorted(rows, column, numbers, sign) {
  const text = row => row.cells[column].textContent;
  const value = row => Number.parseFloat(row.cells[column].dataset.value ?? "NaN");
  if (!numbers) return [...rows].sort((a, b) => sign * text(a).localeCompare(text(b), "en", { numeric: true }));
  const known = rows.filter(row => !Number.isNaN(value(row)));
  const unknown = rows.filter(row => Number.isNaN(value(row)));
  return [...known.sort((a, b) => sign * (value(a) - value(b))), ...unknown];
}

function filterable(table) {
  const rows = [...table.tBodies[0].rows];
  const line = document.createElement("label");
  line.className = "filter";
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = "attn, AF101, memory ...";
  const count = document.createElement("span");
  count.setAttribute("role", "status");
  line.append("Show rows that contain", input, count);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = [...row.cells].map(cell => cell.textContent).join(" ").toLowerCase();
      row.hidden = !words.every(word => text.includes(word));
    }
    const left = rows.filter(row => !row.hidden).length;
    count.textContent = words.length ? `${left} of ${rows.length} rows` : "";
  });
  table.closest(".scrolls").before(line);
}

function zoomable(frame) {
  const drawing = frame.querySelector("svg");
  const labels = [...drawing.querySelectorAll("text.label")];
  let factor = 1;
  frame.tabIndex = 0;
  frame.setAttribute("role", "region");
  frame.setAttribute("aria-label", `${drawing.getAttribute("aria-label")}. Plus and minus zoom, arrow keys scroll.`);
  const follow = () => labels.forEach(label => label.setAttribute("x", frame.scrollLeft));
  const zoom = (next, at = frame.clientWidth / 2) => {
    next = Math.min(64, Math.max(1, next));
    const left = (frame.scrollLeft + at) * next / factor - at;
    factor = next;
    drawing.style.width = `${100 * factor}%`;
    frame.scrollLeft = left;
    follow();
  };
  frame.addEventListener("scroll", follow);
  frame.addEventListener("wheel", event => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(factor * (event.deltaY < 0 ? 1.25 : 0.8), event.clientX - frame.getBoundingClientRect().left);
  }, { passive: false });
  frame.addEventListener("keydown", event => {
    if (event.key === "+" || event.key === "=") zoom(2 * factor);
    else if (event.key === "-") zoom(factor / 2);
    else if (event.key === "0") zoom(1);
    else return;
    event.preventDefault();
  });
  const bar = document.createElement("div");
  bar.className = "zoom";
  for (const [text, next] of [["Zoom in", () => 2 * factor], ["Zoom out", () => factor / 2], ["Whole step", () => 1]]) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.addEventListener("click", () => zoom(next()));
    bar.append(button);
  }
  frame.before(bar);
}

function icicle(frame) {
  const items = [...frame.querySelectorAll("li")];
  const open = item => {
    items.forEach(other => other.classList.remove("away"));
    for (let at = item; at && frame.contains(at); at = at.parentElement.closest("li"))
      for (const sibling of at.parentElement.children) if (sibling !== at) sibling.classList.add("away");
    frame.dataset.open = item ? items.indexOf(item) : "";
  };
  frame.addEventListener("click", event => {
    const button = event.target.closest("button");
    if (!button) return;
    const item = button.parentElement;
    // A second click on what is open goes one level up.
    open(frame.dataset.open === String(items.indexOf(item)) ? item.parentElement.closest("li") : item);
  });
  frame.addEventListener("keydown", event => {
    const button = event.target.closest("button");
    if (event.key === "Escape") open(null);
    if (!button) return;
    const item = button.parentElement;
    const shown = way => {
      let next = item[way];
      while (next && (next.classList.contains("away") || !next.querySelector("button"))) next = next[way];
      return next;
    };
    const next = {
      ArrowUp: () => item.parentElement.closest("li"),
      ArrowDown: () => item.querySelector("ul > li:not(.away)"),
      ArrowLeft: () => shown("previousElementSibling"),
      ArrowRight: () => shown("nextElementSibling"),
    }[event.key]?.();
    if (!next) return;
    event.preventDefault();
    next.querySelector("button")?.focus();
  });
}

document.querySelectorAll("table[data-filters]").forEach(filterable);
document.querySelectorAll("table[data-sorts]").forEach(sortable);
document.querySelectorAll(".scrolls[data-zooms]").forEach(zoomable);
document.querySelectorAll(".icicle").forEach(icicle);
