// The press of a button: a click goes to what lies under the pointer both when it is pressed and when
// it is released, so what is replaced in between would swallow it.

let isPressed = false;
const waiting = [];

/** Until no button is pressed, and its click has been dispatched. */
export async function released() {
  if (isPressed) await new Promise((go) => waiting.push(go));
}

function release() {
  isPressed = false;
  for (const go of waiting.splice(0)) go();
}

addEventListener("pointerdown", () => { isPressed = true; }, true);
for (const type of ["pointerup", "pointercancel"]) {
  addEventListener(type, () => setTimeout(release), true); // The click follows in the same task.
}
// A release outside the window is not always reported.
addEventListener("pointermove", ({ buttons }) => { if (isPressed && !buttons) release(); }, true);
addEventListener("blur", release);
