// Swagger UI is dark where its root has this class: it follows the browser, as the dashboard does.
const dark = matchMedia("(prefers-color-scheme: dark)");

function follow() {
  document.documentElement.classList.toggle("dark-mode", dark.matches);
}

dark.addEventListener("change", follow);
follow();
