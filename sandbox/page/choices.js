// Draw elements that choose among options: selects, checkboxes, radio buttons.

import { el } from "./dom.js";
import { plainText, textObject } from "./text.js";

/** All options of an element, including those in groups. */
function flatOptions(element) {
  const groups = element.option_groups ?? [{ options: element.options ?? [] }];
  return groups.flatMap((group) => group.options ?? []);
}

// An option is identified by its value, as in Slack.
const same = (one, other) => one?.value === other?.value;
const indexOf = (options, wanted) => options.findIndex((option) => same(option, wanted));

const wordsOf = (object) => (object?.type === "mrkdwn" ? object.text : plainText(object));

/** A select for one option; its value is the option object or null. */
export function select(element, value, { block }) {
  const options = flatOptions(element);
  const optional = block.type !== "input" || Boolean(block.optional);
  const hint = plainText(element.placeholder) || "Choose…";
  const nothing = el("option", { value: "", disabled: !optional, hidden: !optional }, hint);
  let at = 0;
  const asNode = (option) => {
    const detail = plainText(option.description);
    const words = wordsOf(option.text) + (detail ? ` — ${detail}` : "");
    return el("option", { value: String(at++), "data-value": option.value }, words);
  };
  const choices = element.option_groups
    ? element.option_groups.map((group) =>
        el("optgroup", { label: plainText(group.label) }, group.options.map(asNode)),
      )
    : options.map(asNode);
  const control = el("select", { class: "control" }, nothing, choices);
  const start = indexOf(options, value);
  control.value = start === -1 ? "" : String(start);
  const node = el("div", { class: "field field-select" }, control);
  const read = () => (control.value === "" ? null : options[Number(control.value)]);
  return { node, control, read };
}

/** Checkboxes or radio buttons. */
export function choiceList(element, value, { id }) {
  const many = element.type === "checkboxes";
  const drawn = boxes(flatOptions(element), value, { id, type: many ? "checkbox" : "radio" });
  const control = el(
    "div",
    { class: "choices", role: many ? "group" : "radiogroup", tabindex: "-1" },
    drawn.rows,
  );
  const node = el("div", { class: "field" }, control);
  const read = () => (many ? drawn.chosen() : (drawn.chosen()[0] ?? null));
  return { node, control, read, group: true };
}

/** Several of many: a box of checkboxes with a filter and a count. */
export function multiSelect(element, value, { id }) {
  const options = flatOptions(element);
  const { rows, chosen } = boxes(options, value, { id, type: "checkbox" });
  const most = element.max_selected_items ?? Number.POSITIVE_INFINITY;
  const count = el("span", { class: "multi-count", role: "status" });
  const control = el(
    "div",
    { class: "choices choices-boxed", role: "group", tabindex: "-1" },
    rows,
  );
  const limit = () => {
    const taken = chosen().length;
    count.textContent = taken === 0 ? "None chosen" : `${taken} chosen`;
    for (const row of rows) {
      const box = row.querySelector("input");
      box.disabled = !box.checked && taken >= most;
    }
  };
  control.addEventListener("change", limit);
  limit();
  const filter = options.length > 8 && filterBox(rows, element);
  const node = el("div", { class: "field field-multi" }, filter, control, count);
  return { node, control, read: chosen, group: true };
}

function filterBox(rows, element) {
  const box = el("input", {
    class: "control control-filter",
    type: "search",
    placeholder: plainText(element.placeholder) || "Filter…",
    "aria-label": "Filter the choices",
  });
  box.addEventListener("change", (event) => event.stopPropagation());
  box.addEventListener("input", () => {
    const wanted = box.value.trim().toLocaleLowerCase();
    for (const row of rows) {
      row.hidden = !row.textContent.toLocaleLowerCase().includes(wanted);
    }
  });
  return box;
}

function boxes(options, value, { id, type }) {
  const before = [value ?? []].flat();
  const rows = options.map((option) => {
    const detail = option.description;
    const box = el("input", { type, name: id, "data-value": option.value });
    box.checked = before.some((one) => same(one, option));
    return el(
      "label",
      { class: "choice" },
      box,
      el(
        "span",
        { class: "choice-words" },
        el("span", {}, optionText(option.text)),
        detail && el("span", { class: "choice-detail" }, optionText(detail)),
      ),
    );
  });
  const chosen = () =>
    options.filter((option, at) => rows[at].querySelector("input").checked);
  return { rows, chosen };
}

// Options may contain mrkdwn only here; names in it are shown as their ids.
const NOBODY = {
  users: new Map(),
  channels: new Map(),
  groups: new Map(),
  me: {},
  isInMyGroups: () => false,
};

function optionText(object) {
  return textObject(object, NOBODY);
}
