// Track whether a pointer button is held down, and count what a person does.

let pressed = false;
let waiting = [];

/** Count clicks or interactions since the page was loaded; stories read the numbers. */
export function count(what) {
  const { dataset } = document.documentElement;
  dataset[what] = Number(dataset[what] ?? 0) + 1;
}

function down() {
  pressed = true;
  count("clicks");
}

function up() {
  pressed = false;
  const resolvers = waiting;
  waiting = [];
  // The browser fires the click after `pointerup`; the waiters run after that click.
  setTimeout(() => resolvers.forEach((resolve) => resolve()));
}

/** Wait until no button is pressed: a click counts only on the node it began on. */
export function released() {
  return pressed ? new Promise((resolve) => waiting.push(resolve)) : Promise.resolve();
}

document.addEventListener("pointerdown", down, { capture: true });
for (const name of ["pointerup", "pointercancel", "dragend"]) {
  document.addEventListener(name, up, { capture: true });
}
window.addEventListener("blur", up);
