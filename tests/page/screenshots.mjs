// Pictures of each view with a model over two nodes, into the folder that is named.
import path from 'node:path';
import { end, model, openPage, startBrowser, startNode } from './run.mjs';

const out = process.argv[2];
let browser;
try {
  const kitchen = await startNode('kitchen');
  const attic = await startNode('attic', kitchen);
  browser = await startBrowser();
  for (const [scheme, viewport, suffix] of [['light', { width: 1200, height: 900 }, ''], ['dark', { width: 1200, height: 900 }, '-dark'],
    ['dark', { width: 390, height: 844 }, '-phone']]) {
    const page = await openPage(browser, { viewport, colorScheme: scheme });
    await page.goto(kitchen.link());
    await page.locator('article.node').nth(1).waitFor();
    const show = (view) => page.getByRole('navigation').getByRole('link', { name: view, exact: true }).click();
    const picture = (name) => page.screenshot({ path: path.join(out, `${name}${suffix}.png`) });
    await show('Plan');
    await page.getByLabel('Model', { exact: true }).fill(model);
    await page.getByLabel('Context').fill('512');
    await page.getByLabel('Layers by hand').fill('kitchen=0-2,attic=3-5');
    await page.getByRole('button', { name: 'Plan', exact: true }).click();
    await page.getByText('Predicted').waitFor();
    await picture('plan');
    await page.getByRole('button', { name: 'Load by this plan' }).click();
    await page.getByRole('status').getByText(/is loaded|was loaded/).waitFor({ timeout: 60000 });
    await show('Chat');
    await page.waitForFunction(() => document.querySelector('.talk select')?.value);
    await page.getByText('Settings').click();
    await page.getByLabel('Most tokens').fill('80');
    await page.getByText('Settings').click();
    await page.getByLabel('Message').fill('The old captain');
    await page.keyboard.press('Enter');
    await page.getByText(/tokens\/s, first token after/).waitFor({ timeout: 60000 });
    await picture('chat');
    await show('Models');
    await page.locator('tbody tr').nth(1).waitFor();
    await picture('models');
    await show('Cluster');
    await page.locator('article.node').nth(1).waitFor();
    await picture('cluster');
    await page.close();
  }
  await attic.stop();
} finally {
  await end(browser);
}
