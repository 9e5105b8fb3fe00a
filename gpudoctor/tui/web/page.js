// keys go to the screen without a click; textual-serve's script has opened its terminal by then
addEventListener("load", () => document.querySelector(".xterm-helper-textarea")?.focus());
