// Toggle between the light and dark theme; local storage keeps the choice.

/** Switch to the other colour scheme. */
export function toggleTheme() {
  const { dataset } = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  dataset.theme = (dataset.theme ?? system) === "dark" ? "light" : "dark";
  localStorage.setItem("sandbox.theme", dataset.theme);
}
