// Starts a headless Chromium, driven by the library that setup.sh fetched.
import { createRequire } from "node:module";
import { dirname, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const dir = process.env.BROWSER_DIR ?? resolve(here, "../../target/browser");
const { chromium } = createRequire(resolve(dir, "node_modules/"))("playwright-core");

// CI runs as root, and Chromium can't create its sandbox as root. The sandbox is not needed, because Chromium only
// opens pages of this machine.
export const launch = () =>
    chromium.launch({
        executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
        args: ["--no-sandbox", "--disable-gpu", "--font-render-hinting=none"],
    });
