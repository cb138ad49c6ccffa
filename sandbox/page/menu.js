// A menu under a button: the overflow element and the person switcher.

import { el } from "./dom.js";

/**
 * Open a menu below `anchor`. Items: `{label, choose}`, optionally `detail`, `value`,
 * `before` (nodes), `checked`, `attributes` (an `href` makes the item a real link).
 */
export function openMenu(anchor, items, className = "") {
  const entries = items.map((item) => entryNode(item, () => menu.hidePopover()));
  const menu = el("div", { class: `menu ${className}`, role: "menu", popover: "auto" }, entries);
  menu.addEventListener("toggle", ({ newState }) => {
    anchor.setAttribute("aria-expanded", String(newState === "open"));
    if (newState === "open") return;
    const hadFocus = menu.contains(document.activeElement);
    menu.remove();
    if (hadFocus) anchor.focus();
  });
  menu.addEventListener("keydown", (event) => walk(event, entries));
  // Not in the message, which is drawn again while the menu is open; in the modal dialog if
  // there is one, because everything outside of it is inert.
  (anchor.closest("dialog") ?? document.body).append(menu);
  menu.showPopover();
  place(menu, anchor);
  (entries.find((entry) => entry.ariaChecked === "true") ?? entries[0])?.focus();
}

function entryNode(item, close) {
  const attributes = item.attributes ?? {};
  return el(
    attributes.href ? "a" : "button",
    {
      class: "menu-item",
      role: item.checked === undefined ? "menuitem" : "menuitemradio",
      "aria-checked": item.checked ?? null,
      tabindex: "-1",
      "data-value": item.value ?? null,
      ...attributes,
      onclick: (event) => {
        // A link with a modifier key opens a new tab, like any link.
        if (attributes.href && (event.ctrlKey || event.metaKey || event.shiftKey)) return;
        event.preventDefault();
        close();
        item.choose();
      },
    },
    item.before,
    el(
      "span",
      { class: "menu-words" },
      el("bdi", {}, item.label),
      item.detail && el("bdi", { class: "menu-detail" }, item.detail),
    ),
  );
}

const STEPS = { ArrowDown: 1, ArrowUp: -1 };

function walk(event, entries) {
  const at = entries.indexOf(document.activeElement);
  let next = null;
  if (event.key in STEPS) next = (at + STEPS[event.key] + entries.length) % entries.length;
  if (event.key === "Home") next = 0;
  if (event.key === "End") next = entries.length - 1;
  if (next === null) return;
  event.preventDefault();
  entries[next].focus();
}

function place(menu, anchor) {
  const margin = 8;
  const at = anchor.getBoundingClientRect();
  const { width, height } = menu.getBoundingClientRect();
  const left = Math.min(at.left, window.innerWidth - width - margin);
  const below = at.bottom + 4;
  const top = below + height > window.innerHeight - margin ? at.top - height - 4 : below;
  menu.style.setProperty("left", `${Math.max(margin, left)}px`);
  menu.style.setProperty("top", `${Math.max(margin, top)}px`);
}
