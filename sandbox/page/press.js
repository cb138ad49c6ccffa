// Know whether somebody is pressing something right now.

let pressed = false;
let waiting = [];

function down() {
  pressed = true;
}

function up() {
  pressed = false;
  const told = waiting;
  waiting = [];
  // The click comes after the pointer went up: what waits comes after the click.
  setTimeout(() => told.forEach((tell) => tell()));
}

/** Wait until nothing is pressed: a click counts only on the node it began on. */
export function released() {
  return pressed ? new Promise((tell) => waiting.push(tell)) : Promise.resolve();
}

document.addEventListener("pointerdown", down, { capture: true });
for (const name of ["pointerup", "pointercancel", "dragend"]) {
  document.addEventListener(name, up, { capture: true });
}
window.addEventListener("blur", up);
