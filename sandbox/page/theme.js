// Apply the chosen colour scheme before the first paint; a module would be too late.
{
  const chosen = localStorage.getItem("sandbox.theme");
  if (chosen === "light" || chosen === "dark") {
    document.documentElement.dataset.theme = chosen;
  }
}
