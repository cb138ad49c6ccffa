// Track whether a pointer button is held down.

let pressed = false;
let waiting = [];

function down() {
  pressed = true;
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
