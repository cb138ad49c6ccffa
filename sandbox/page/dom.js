// Build DOM nodes and keep the ones that have not changed.
// Text always becomes a text node: nothing in this page ever parses markup.

/** Make an element. `on…` adds a listener, null and false omit an attribute. */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) assign(node, name, value);
  node.append(...present(children));
  return node;
}

function assign(node, name, value) {
  if (value === null || value === undefined) return;
  if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
  else if (name.startsWith("aria-")) node.setAttribute(name, String(value));
  else if (value !== false) node.setAttribute(name, value === true ? "" : String(value));
}

function present(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false);
}

const kept = new WeakMap(); // node -> {key, signature} of what it was built from

/**
 * Make the children of `parent` show `items`, reusing each child whose signature is
 * unchanged. Items are `{key, signature, build}`.
 */
export function keyed(parent, items) {
  const wanted = new Set(items.map((item) => item.key));
  const old = new Map();
  // Removed nodes go first, so that the others need not move and keep their focus.
  for (const child of [...parent.children]) {
    const key = kept.get(child)?.key;
    if (wanted.has(key)) old.set(key, child);
    else child.remove();
  }
  let cursor = parent.firstElementChild;
  for (const item of items) {
    const before = old.get(item.key);
    if (before === cursor && cursor !== null) cursor = cursor.nextElementSibling;
    else if (before !== undefined) parent.insertBefore(before, cursor);
    if (before !== undefined && kept.get(before).signature === item.signature) continue;
    const node = item.build();
    kept.set(node, { key: item.key, signature: item.signature });
    if (before === undefined) parent.insertBefore(node, cursor);
    else keepFocus(before, node, () => before.replaceWith(node));
  }
}

const filled = new WeakMap(); // slot -> signature of its content

/** Rebuild the content of `slot` only when `signature` differs from the last one. */
export function fill(slot, signature, build) {
  if (filled.get(slot) === signature) return false;
  filled.set(slot, signature);
  keepFocus(slot, slot, () => slot.replaceChildren(...present([build()])));
  return true;
}

function keepFocus(before, after, change) {
  const active = document.activeElement;
  const inside = before.contains(active) && active !== before;
  const hooks = inside ? hooksOf(active) : [];
  const caret = inside ? [active.selectionStart, active.selectionEnd] : [];
  change();
  if (!inside || after.contains(document.activeElement)) return;
  const again = findAgain(after, hooks);
  if (again !== null) focusAgain(again, caret);
  else if (after.hasAttribute("tabindex")) after.focus({ preventScroll: true });
}

function focusAgain(holder, [start, end]) {
  const control = holder.matches("button,a") ? holder : (focusable(holder)[0] ?? holder);
  control.focus({ preventScroll: true });
  if (typeof start === "number") control.setSelectionRange?.(start, end);
}

const HOOKS = ["data-action-id", "data-hook", "data-channel", "data-user"];

/** Selectors that may find the same control again after it was rebuilt, best first. */
export function hooksOf(node) {
  const holder = node.closest(HOOKS.map((name) => `[${name}]`).join(","));
  if (holder === null) return [];
  const name = HOOKS.find((one) => holder.hasAttribute(one));
  const hook = `[${name}="${CSS.escape(holder.getAttribute(name))}"]`;
  const block = holder.closest("[data-block-id]")?.dataset.blockId;
  const message = holder.closest("[data-ts]")?.dataset.ts;
  return [
    block !== undefined && `[data-block-id="${CSS.escape(block)}"] ${hook}`,
    hook,
    message !== undefined && `[data-ts="${CSS.escape(message)}"]`,
  ].filter(Boolean);
}

/** The one element inside `root` that the first matching hook selects, or null. */
export function findAgain(root, hooks) {
  for (const hook of hooks) {
    const found = root.querySelectorAll(hook);
    if (found.length === 1) return found[0];
  }
  return null;
}

/** Every control inside `root` that the Tab key would reach, in order. */
export function focusable(root) {
  const all = root.querySelectorAll(
    "button,input,select,textarea,a[href],[tabindex]:not([tabindex='-1'])",
  );
  return [...all].filter((node) => !node.disabled && node.offsetParent !== null);
}

/** Keep Tab inside `root`, for dialogs. */
export function trapTab(root, event) {
  if (event.key !== "Tab") return;
  const stops = focusable(root);
  if (stops.length === 0) return;
  const last = stops[stops.length - 1];
  const active = document.activeElement;
  if (event.shiftKey && (active === stops[0] || !root.contains(active))) {
    event.preventDefault();
    last.focus();
  } else if (!event.shiftKey && (active === last || !root.contains(active))) {
    event.preventDefault();
    stops[0].focus();
  }
}
