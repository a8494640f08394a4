import com.fasterxml.jackson.annotation.JsonCreator;
import com.fasterxml.jackson.annotation.JsonProperty;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.util.List;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import javax.sql.DataSource;
import org.joda.time.DateTime;
import org.joda.time.DateTimeZone;
import org.joda.time.Period;
import org.killbill.billing.util.queue.QueueRetryException;
import org.killbill.bus.DefaultPersistentBus;
import org.killbill.bus.api.BusEvent;
import org.killbill.clock.DefaultClock;
import org.killbill.commons.eventbus.AllowConcurrentEvents;
import org.killbill.commons.eventbus.Subscribe;
import org.killbill.notificationq.DefaultNotificationQueueService;
import org.killbill.notificationq.api.NotificationEvent;
import org.killbill.notificationq.api.NotificationQueue;
import org.killbill.queue.retry.RetryableHandler;
import org.killbill.queue.retry.RetryableInternalException;
import org.killbill.queue.retry.RetryableService;
import org.killbill.queue.retry.RetryableSubscriber;
import org.killbill.queue.retry.RetryableSubscriber.SubscriberQueueHandler;

/** Lets the real killbill-queue write its four tables, with entries in every state that they can be in. */
public class KillbillWriter {
    static final CountDownLatch FOREVER = new CountDownLatch(1);
    static final CountDownLatch FLAKY = new CountDownLatch(1);
    static final CountDownLatch STUCK = new CountDownLatch(1);
    static String url;

    public static class Payment implements BusEvent {
        private final String name;
        private final Long account;
        private final UUID token;

        @JsonCreator
        public Payment(@JsonProperty("name") String name, @JsonProperty("searchKey1") Long account,
                       @JsonProperty("searchKey2") Long tenant, @JsonProperty("userToken") UUID token) {
            this.name = name;
            this.account = account;
            this.token = token;
        }

        public String getName() { return name; }
        public Long getSearchKey1() { return account; }
        public Long getSearchKey2() { return 7L; }
        public UUID getUserToken() { return token; }
    }

    public static class Reminder implements NotificationEvent {
        private final String text;

        @JsonCreator
        public Reminder(@JsonProperty("text") String text) { this.text = text; }

        public String getText() { return text; }
    }

    static class Retries extends RetryableService {
        Retries(DefaultNotificationQueueService service) { super(service); }
    }

    static QueueRetryException inTenYears() {
        return new QueueRetryException(new IllegalStateException("later"), List.of(Period.years(10), Period.years(11)));
    }

    public static class Subscriber {
        @AllowConcurrentEvents
        @Subscribe
        public void handle(Payment event) throws Exception {
            if (event.getName().startsWith("bad")) throw new IllegalStateException("bad as ever");
            if (event.getName().startsWith("flaky")) {
                FLAKY.countDown();
                throw new IllegalStateException("not this time");
            }
            if (event.getName().startsWith("hangs")) FOREVER.await();
            if (event.getName().startsWith("stuck") && FLAKY.getCount() > 0) {
                STUCK.countDown();
                FOREVER.await();
            }
        }
    }

    static long count(String query) throws Exception {
        try (Connection connection = DriverManager.getConnection(url);
             ResultSet rows = connection.createStatement().executeQuery(query)) {
            rows.next();
            return rows.getLong(1);
        }
    }

    static void until(String query, long wanted) throws Exception {
        while (count(query) < wanted) Thread.sleep(50);
    }

    static Payment payment(String name, int account) {
        return new Payment(name, (long) account, 7L, UUID.nameUUIDFromBytes(name.getBytes(java.nio.charset.StandardCharsets.UTF_8)));
    }

    static Properties settings(String prefix, String sleep) {
        Properties properties = new Properties();
        properties.setProperty(prefix + "sleep", sleep);
        properties.setProperty(prefix + "claim.time", "1s");
        properties.setProperty(prefix + "reapThreshold", "3s");
        properties.setProperty(prefix + "reapSchedule", "1s");
        return properties;
    }

    public static void main(String[] arguments) throws Exception {
        url = arguments[0];
        DataSource source = (DataSource) Class.forName(arguments[1]).getConstructor().newInstance();
        source.getClass().getMethod("setUrl", String.class).invoke(source, url);
        try {
            if (arguments[2].equals("first")) first(source); else second(source);
        } catch (Throwable error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        Runtime.getRuntime().halt(0);
    }

    /** A node that works, and dies with an entry in hand. */
    static void first(DataSource source) throws Exception {
        Properties settings = settings("org.killbill.persistent.bus.main.", "200");
        settings.setProperty("org.killbill.persistent.bus.main.reapSchedule", "1h");
        DefaultPersistentBus bus = new DefaultPersistentBus(source, settings);
        bus.startQueue();
        bus.register(new Subscriber());
        for (int number = 1; number <= 4; number++) bus.post(payment("fine " + number, number));
        bus.post(payment("bad", 5));
        until("SELECT count(*) FROM bus_events_history", 5);
        bus.post(payment("stuck", 6));
        STUCK.await();

        Properties dates = settings("org.killbill.notificationq.main.", "200");
        DefaultNotificationQueueService service = new DefaultNotificationQueueService(source, dates);
        NotificationQueue due = service.createNotificationQueue("invoice", "due", (event, date, token, key1, key2) -> {
            if (((Reminder) event).getText().startsWith("bad")) throw new IllegalStateException("no printer");
        });
        due.startQueue();
        DateTime now = new DateTime(DateTimeZone.UTC);
        due.recordFutureNotification(now, new Reminder("at once"), UUID.randomUUID(), 1L, 7L);
        due.recordFutureNotification(now, new Reminder("bad"), UUID.randomUUID(), 2L, 7L);
        until("SELECT count(*) FROM notifications_history", 2);
        retried(service, now);
        due.recordFutureNotification(now.plusDays(400), new Reminder("removed"), UUID.randomUUID(), 3L, 7L);
        long id = count("SELECT max(record_id) FROM notifications");
        due.removeNotification(id);
        for (int number = 1; number <= 3; number++)
            due.recordFutureNotification(now.plusYears(10 + number), new Reminder("später " + number), UUID.randomUUID(), (long) number, 7L);
        due.recordFutureNotification(now.plusYears(10), new Reminder("no key"), UUID.randomUUID(), null, null);
    }

    /** A notification and a bus event whose handlers ask for a retry by a schedule. */
    static void retried(DefaultNotificationQueueService service, DateTime now) throws Exception {
        Retries retries = new Retries(service);
        NotificationQueue queue = service.createNotificationQueue("invoice", "retried", new RetryableHandler(
                new DefaultClock(), retries, (event, date, token, key1, key2) -> { throw inTenYears(); }));
        retries.initialize(queue, (event, date, token, key1, key2) -> { });
        queue.startQueue();
        queue.recordFutureNotification(now, new Reminder("again"), UUID.randomUUID(), 4L, 7L);
        until("SELECT count(*) FROM notifications_history", 3);

        Retries ofBus = new Retries(service);
        SubscriberQueueHandler actions = new SubscriberQueueHandler();
        actions.subscribe(Payment.class, event -> { throw inTenYears(); });
        ofBus.initialize("listener", actions);
        try {
            new RetryableSubscriber(new DefaultClock(), ofBus, actions).handleEvent(payment("again", 12));
        } catch (RetryableInternalException expected) {
            until("SELECT count(*) FROM notifications", 2);
        }
    }

    /** Another node, which takes over what the first had in hand, and dies after a failure. */
    static void second(DataSource source) throws Exception {
        FLAKY.countDown();
        DefaultPersistentBus bus = new DefaultPersistentBus(source, settings("org.killbill.persistent.bus.main.", "200"));
        bus.startQueue();
        bus.register(new Subscriber());
        until("SELECT count(*) FROM bus_events_history WHERE processing_state = 'REAPED'", 1);
        until("SELECT count(*) FROM bus_events_history WHERE processing_state = 'PROCESSED'", 5);
        bus.stopQueue();
        Properties slow = settings("org.killbill.persistent.bus.main.", "30000");
        slow.setProperty("org.killbill.persistent.bus.main.reapSchedule", "1h");
        DefaultPersistentBus last = new DefaultPersistentBus(source, slow);
        last.initQueue();
        last.register(new Subscriber());
        last.post(payment("flaky", 8));
        last.post(payment("hangs", 11));
        last.startQueue();
        until("SELECT count(*) FROM bus_events WHERE error_count = 1", 1);
        last.post(payment("waits", 9));
        last.post(payment("waits, too: \u00fc", 10));
        until("SELECT count(*) FROM bus_events", 4);
    }
}
