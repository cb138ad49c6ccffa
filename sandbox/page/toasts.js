// Show short notices in a corner, each once.

import { el } from "./dom.js";
import { icon } from "./icons.js";

const root = document.getElementById("toasts");
const LASTS_MS = { info: 6000, warning: 10_000, error: 15_000 };
const seen = new Set();

/** Show one notice; it disappears automatically, but never while the pointer is on it. */
export function toast(text, level = "info") {
  const lasts = LASTS_MS[level] ?? LASTS_MS.info;
  const node = el(
    "div",
    {
      class: `toast toast-${level}`,
      role: level === "info" ? "status" : "alert",
      "data-level": level,
    },
    el("bdi", { class: "toast-text" }, text),
    el(
      "button",
      {
        type: "button",
        class: "button button-icon",
        "aria-label": "Dismiss this notice",
        onclick: () => node.remove(),
      },
      icon("close"),
    ),
  );
  let timer = setTimeout(() => node.remove(), lasts);
  node.addEventListener("pointerenter", () => clearTimeout(timer));
  node.addEventListener("pointerleave", () => {
    timer = setTimeout(() => node.remove(), lasts / 2);
  });
  root.append(node);
}

/** Show the notices of the state that this page has not shown; old ones stay silent. */
export function showNotices(state) {
  for (const { id, text, level, at } of state.notices) {
    if (seen.has(id)) continue;
    seen.add(id);
    if (state.now - at < 20) toast(text, level);
  }
}
