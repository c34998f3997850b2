// Keys click the buttons; everything else is the form's.
"use strict";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || event.target.matches("input, textarea")) return;
  const button = [...document.querySelectorAll("button[data-key]")].find((one) => one.dataset.key === event.key);
  if (!button || button.disabled) return;
  event.preventDefault();
  button.click();
});
// A second choice before the next pair is there would be one about a pair that nobody has seen.
const form = document.querySelector("form.choices");
if (form) {
  let sent = false;
  form.addEventListener("submit", (event) => {
    if (sent) event.preventDefault();
    sent = true;
  });
}
