// Before anything is drawn: the theme that was chosen on this machine.
(() => {
  try {
    const chosen = localStorage.getItem("penstock-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch { /* a private window keeps nothing */ }
})();
