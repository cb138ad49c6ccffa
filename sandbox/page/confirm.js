// Ask "are you sure?" with Slack's confirm object.

import { el, trapTab } from "./dom.js";
import { plainText, textObject } from "./text.js";

/** Resolve to true when the person confirms, false when they cancel. */
export function confirmed(confirm, workspace) {
  const { promise, resolve } = Promise.withResolvers();
  const before = document.activeElement;
  const others = ["app", "modals"].map((id) => document.getElementById(id));
  const wasInert = others.map((node) => node.inert);
  const finish = (answer) => {
    shade.remove();
    others.forEach((node, at) => (node.inert = wasInert[at]));
    before?.focus({ preventScroll: true });
    resolve(answer);
  };
  const { dialog, deny, agree } = dialogNode(confirm, workspace, finish);
  const shade = el("div", { class: "shade" }, dialog);
  shade.addEventListener("pointerdown", (event) => event.target === shade && finish(false));
  shade.addEventListener("keydown", (event) => {
    trapTab(shade, event);
    if (event.key !== "Escape") return;
    event.stopPropagation();
    finish(false);
  });
  others.forEach((node) => (node.inert = true));
  document.getElementById("confirms").append(shade);
  (confirm.style === "danger" ? deny : agree).focus();
  return promise;
}

function dialogNode(confirm, workspace, finish) {
  const choice = (className, text, answer) =>
    el(
      "button",
      { type: "button", class: `button ${className}`, onclick: () => finish(answer) },
      text,
    );
  const kind = confirm.style === "danger" ? "button-danger-solid" : "button-primary";
  const deny = choice("confirm-deny", plainText(confirm.deny) || "Cancel", false);
  const agree = choice(`confirm-agree ${kind}`, plainText(confirm.confirm) || "Yes", true);
  const dialog = el(
    "div",
    {
      class: "dialog dialog-small",
      role: "alertdialog",
      "aria-modal": true,
      "aria-labelledby": "confirm-title",
      "aria-describedby": "confirm-text",
    },
    el("h2", { id: "confirm-title", class: "dialog-title" }, plainText(confirm.title)),
    el("div", { id: "confirm-text", class: "dialog-body" }, textObject(confirm.text, workspace)),
    el("div", { class: "dialog-buttons" }, deny, agree),
  );
  return { dialog, deny, agree };
}
