/* Light or dark, by the system or as chosen before; in the head of the page, so that nothing is drawn in the other. */
(function () {
  "use strict";

  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const page = document.documentElement;
  let chosen = null;
  try {
    chosen = localStorage.getItem("fedstale-theme");
  } catch {
    /* without storage a choice lasts as long as the page */
  }

  function apply() {
    page.dataset.theme = (chosen ? chosen === "dark" : dark.matches) ? "dark" : "light";
    page.dispatchEvent(new Event("themed"));
  }

  window.fedstaleTheme = function (next) {
    chosen = next;
    try {
      localStorage.setItem("fedstale-theme", next);
    } catch {
      /* as above */
    }
    apply();
  };
  dark.addEventListener("change", apply);
  apply();
})();
