// A <details> that is a menu: Escape, a click elsewhere, or the focus going elsewhere closes it.

export function closeOnLeave(menu) {
  const close = () => { menu.open = false; };
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    close();
    menu.querySelector("summary").focus();
  });
  menu.addEventListener("focusout", (event) => {
    if (event.relatedTarget !== null && !menu.contains(event.relatedTarget)) close();
  });
  document.addEventListener("click", (event) => {
    if (!menu.contains(event.target)) close();
  });
  menu.addEventListener("submit", close);
}
