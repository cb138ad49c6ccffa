// Render elements without a value: buttons and overflow menus.

import { el } from "./dom.js";
import { icon } from "./icons.js";
import { confirmed } from "./confirm.js";
import { openMenu } from "./menu.js";
import { plainText } from "./text.js";

const ELEMENTS = { button, overflow };

export const isElement = (element) => Object.hasOwn(ELEMENTS, element?.type);

/** A node for a button or an overflow menu. */
export function elementNode(element, block, surface) {
  return ELEMENTS[element.type](element, block, surface);
}

const STYLES = ["primary", "danger"];

function button(element, block, surface) {
  const allowed = element.visible_to_user_ids;
  if (Array.isArray(allowed) && !allowed.includes(surface.workspace.me.id)) {
    return document.createComment("a button for other people");
  }
  const style = STYLES.includes(element.style) ? `button-${element.style}` : "";
  const node = el(
    "button",
    {
      type: "button",
      class: `button ${style}`,
      "data-action-id": element.action_id ?? "",
      "aria-label": element.accessibility_label ?? null,
    },
    el("bdi", { class: "button-text" }, plainText(element.text)),
  );
  if (element.url) return urlButton(node, element.url);
  node.addEventListener("click", () => press(node, element, block, surface));
  return node;
}

// A button with an address would leave the page, so it only shows the address.
function urlButton(node, url) {
  node.setAttribute("aria-disabled", "true");
  node.title = "Links do not open in the sandbox";
  return el("span", { class: "url-button" }, node, el("bdi", { class: "link-url" }, url));
}

/** Ask for confirmation if the element requires it, then send and show a spinner. */
export async function press(node, element, block, surface, chosen = null) {
  if (node.getAttribute("aria-busy") === "true") return false;
  if (element.confirm && !(await confirmed(element.confirm, surface.workspace))) {
    return false;
  }
  node.setAttribute("aria-busy", "true");
  try {
    await surface.act(block, element, node, chosen);
  } finally {
    node.removeAttribute("aria-busy");
  }
  return true;
}

function overflow(element, block, surface) {
  const node = el(
    "button",
    {
      type: "button",
      class: "button button-icon",
      "data-action-id": element.action_id ?? "",
      "aria-label": element.accessibility_label ?? "More actions",
      "aria-haspopup": "menu",
      "aria-expanded": false,
    },
    icon("more"),
  );
  const items = (element.options ?? []).map((option) => ({
    label: plainText(option.text),
    detail: option.url ?? plainText(option.description),
    value: option.value,
    choose: () =>
      press(node, element, block, surface, {
        type: "overflow",
        selected_option: option,
      }),
  }));
  node.addEventListener("click", () => openMenu(node, items));
  return node;
}
